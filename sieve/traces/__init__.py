"""Traffic: shipped names, files and distributions become `Requests`, reproducibly.

| file | what it reads or draws |
|---|---|
| `load`, `source` | a run spec's traffic: finds the source, applies window, count and rate |
| `formats` | the formats: names, kinds, detection |
| `files`, `faults`, `times` | bytes and lines, rows that cannot be read, units of time |
| `columns`, `jsonl`, `records` | tables and JSON lines by column name; from columns to requests |
| `azure_csv`, `mooncake`, `bailian`, `weka`, `tables`, `access_log` | requests with arrivals |
| `lengths`, `dialogues` | lengths without arrivals |
| `percentiles`, `guidellm`, `prometheus`, `servegen` | statistics from which requests are drawn |
| `export` | traffic as files of AIPerf, vLLM and sieve |
| `statistics`, `reuse`, `commands` | what `sieve trace` tells; hits against cache size |
| `synthetic` | distributions of lengths and arrival processes |
| `summary`, `reuse_summary` | the statistics of a trace, small enough to ship |
| `draw`, `draw_reuse` | traffic drawn from a summary |
| `build` | writes the shipped summaries from the original traces, by hand |
"""

from sieve.traces.load import at_level, available_traffic, load_traffic

__all__ = ["at_level", "available_traffic", "load_traffic"]
