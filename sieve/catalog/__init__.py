"""Facts that ship with sieve: models, accelerators and engine profiles.

`models` reads a catalogue name, a `config.json` or inline facts into a `ModelArchitecture`,
`accelerators` a name or inline facts into a `Gpu`, `engines` a version text into an
`EngineProfile`. The dataclasses stand in `architecture`, the reader of Hugging Face configs in
`hf_config`, the data in `data/`. Import the module that is needed; this file imports nothing.
"""
