"""From a finished run to a confirmation plan: which benchmarks, how started, what to expect.

| file | what it does |
|---|---|
| `record` | the parts of `result.json` that a plan reads, as strict models |
| `run_facts` | reads a run folder and holds its files to each other |
| `choose` | which candidates and which benchmarks, in which order, and what each decides |
| `expected` | expected values of a candidate with the bands in which a measurement agrees |
| `files` | every file of the plan as text |
| `page` | the plan for people, as Markdown |
| `make` | puts it together |
"""

from sieve.plan.make import Plan, make_plan

__all__ = ["Plan", "make_plan"]
