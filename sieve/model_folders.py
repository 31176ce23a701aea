"""Names of a run over several models: its candidates' ids, and the run folder of each model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sieve.errors import ResultError
from sieve.spec.models import MAX_MODELS

MODELS: Final = "models"
"""Below a run over several models: the run folder of each."""
_OF_MODEL: Final = ".model-"


def joint_id(candidate_id: str, label: str) -> str:
    """Return the id of a model's candidate in a run over several: `ID.model-LABEL`."""
    return f"{candidate_id}{_OF_MODEL}{label}"


def own_id(joint: str) -> tuple[str, str]:
    """Return a candidate's id in the run of its model and the model's label; see `joint_id`."""
    own, _, label = joint.rpartition(_OF_MODEL)
    return own, label


def require_one_model(run: Path, result: Mapping[str, Any]) -> None:
    """Refuse a run over several models where one is wanted.

    Raises:
        ResultError: names the run folder of each model.
    """
    if models := result.get("models"):
        folders = [str(run / model["folder"]) for model in models]
        raise ResultError(
            f"{run}: ranks {len(models)} models together; give the folder of one: "
            f"{', '.join(folders)}"
        )


def folder_of(run: Path, result: Mapping[str, Any], model: str | None) -> Path:
    """Return the run folder of a model: the run's own, or the one below a run over several.

    Raises:
        ResultError: the result names a folder outside the run.
    """
    for entry in result.get("models") or []:
        if entry["name"] == model:
            folder = run / str(entry["folder"])
            if not folder.resolve().is_relative_to(run.resolve()):
                raise ResultError(f"{run}: folder {entry['folder']!r} would leave the run folder")
            return folder
    return run


def check_models(path: Path, data: Mapping[str, Any]) -> None:
    """Refuse a result whose `models` are not what a run writes there.

    Raises:
        ResultError: names the file.
    """
    models = data.get("models", [])
    if not isinstance(models, list) or len(models) > MAX_MODELS or not all(map(_is_model, models)):
        raise ResultError(
            f"{path}: 'models' is not a list of at most {MAX_MODELS} models with name and folder "
            f"({MODELS}/LABEL); run `sieve run` again"
        )


def _is_model(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        return False
    return re.fullmatch(rf"{MODELS}/[a-z0-9][a-z0-9.-]*", str(entry.get("folder"))) is not None
