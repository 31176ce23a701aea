"""Questions about fleets: how many, which mix, which schedule, prefill and decode apart.

| file | question |
|---|---|
| `shapes` | deployments of one replica, and one fleet's replay with its verdict |
| `size` | the fewest replicas of each shape; all shapes on equally many GPUs |
| `levels` | who wins at which load, and the load at which winners change |
| `mix` | several shapes and GPU types together, under a budget or for a load |
| `diurnal` | a day or week in windows: peak sizing against a schedule |
| `disaggregate` | prefill and decode engines apart, against engines that do both |
"""
