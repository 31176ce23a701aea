"""Traffic: shipped names, files and distributions become `Requests`, reproducibly.

| file | what it reads or draws |
|---|---|
| `load` | a run spec's traffic: finds the source, applies window, count and rate |
| `files` | bytes, compression and columns of a traffic file, with line numbers for messages |
| `azure_csv` | requests with date-times (Azure LLM inference traces) |
| `lengths` | a table of input and output lengths without arrivals |
| `synthetic` | distributions of lengths and arrival processes |
| `summary` | the statistics of a trace, small enough to ship |
| `draw` | traffic drawn from a summary |
| `build` | writes the shipped summaries from the original traces, by hand |
"""

from sieve.traces.load import at_level, available_traffic, load_traffic

__all__ = ["at_level", "available_traffic", "load_traffic"]
