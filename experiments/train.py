"""Train a model and keep it in a run folder of its own."""

from pathlib import Path

from experiments.run_folder import RunFolder
from experiments.subject_config import SubjectConfig
from nope_interp.checkpoints import load_model, save_model
from nope_interp.devices import check_device
from nope_interp.tasks.registry import make_task
from nope_interp.training import train as train_model
from nope_interp.transformer import HookedTransformer


def train(
    config: SubjectConfig,
    *,
    out: Path | str = "runs",
    device: str = "cpu",
    show_progress: bool = True,
) -> Path:
    """The path of the trained `model.safetensors`; a finished training is not run again.

    Only the config's `task`, `text`, `transformer` and `training` matter here. Raises UserError
    for a config that cannot be trained and an unwritable `out`.
    """
    check_device(device)
    run = RunFolder.of_training(Path(out), config).begin(config)
    with run.locked():
        trained_model(config, run, device, show_progress)
    return run.model


def trained_model(
    config: SubjectConfig, run: RunFolder, device: str, show_progress: bool
) -> HookedTransformer:
    """The model that a run folder keeps, trained first where it is not there yet."""
    if run.model.is_file():
        model, _ = load_model(run.model)
        return model.to(device)
    task = make_task(config.task, config.text)
    model = train_model(
        config.transformer,
        config.training,
        task,
        state_path=run.training_state,
        device=device,
        show_progress=show_progress,
    )
    save_model(model, run.model, task=task.name)
    run.training_state.unlink(missing_ok=True)
    return model
