"""Many runs: sizing jobs of a file, and the search that is repeated every night.

| file | what it does |
|---|---|
| `job_file` | reads the jobs of a YAML, JSON or CSV file, a job at a time |
| `merge` | one job's spec from defaults, a spec file, its own keys and what it sets |
| `batch` | runs the jobs side by side and writes the summary |
| `summary` | one row a job, as JSON and CSV |
| `days` | what a day of traffic was like, in a few numbers, and how far two days are apart |
| `peaks` | the rate to plan for from several days, replicas by the hour |
| `stress` | candidates under variants of the traffic, ranked by their worst |
| `history` | the record of every night in one SQLite file |
| `over_nights` | the choice that holds every night, the peak over them |
| `nightly` | the search repeated on new traffic against the nights before |
"""
