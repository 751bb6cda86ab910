"""What a training run is: settings in groups.

Recipes, flags of the command line and files are derived from them. Every setting has a name of its
own, so that it may be given with or without its group: `{"lr": 0.1}` is
`{"optimizer": {"lr": 0.1}}`.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, make_dataclass, replace
from functools import cache
from typing import Any, Literal, NamedTuple

from torchcaps import plugins
from torchcaps.data import ReadOptions
from torchcaps.data.augment import Augmentation, ordered_augmentations
from torchcaps.errors import UnknownNameError, check_known
from torchcaps.groups import SettingsGroup, field_types, setting as setting
from torchcaps.registry import Registry
from torchcaps.types import Json

# Of settings that only some optimizers or schedules read, those that do (`setting(of=...)`).
CHOICES: dict[str, Registry[Any]] = {
    "optimizer": Registry("optimizer"),
    "schedule": Registry("schedule", restarts=True),
}
OPEN = (None, "auto")  # a setting is open whose default is one of these, and that has it
LARGEST_SEED = 2**31 - 1  # the random numbers of numpy, which draw the split, take seeds of 32 bits


@dataclass(frozen=True)
class ModelSettings(SettingsGroup):
    """Which model."""

    name: str = setting("capsnet", "name of a registered model", name="model")
    options: Json = setting({}, "the model's own options by name", name="model_options")  # noqa: RUF009
    init: str | None = setting(
        None,
        "weights to begin with: of a run, a model file, or a model whose weights come with the package; "
        "what does not fit starts anew",
    )
    backbone: str | None = setting(
        None,
        "of capsule_head or linear_head: a registered backbone, a run, or a model of transformers in a "
        "folder or on the hub",
    )

    @property
    def all_options(self) -> Json:
        """The options of the model, the backbone among them if one is named."""
        if self.backbone is None:
            return self.options
        return self.options | {"backbone": self.backbone}


@dataclass(frozen=True)
class DataSettings(SettingsGroup):
    """Which images."""

    name: str = setting(
        "digits",
        "name of a data set (`torchcaps data list`), or a path: class folders, .npz, .csv, IDX files, ...",
        name="data",
    )
    root: str | None = setting(None, "folder in which a named data set is looked for first")
    max_bytes: int | None = setting(
        None,
        "memory that its decoded image files may take; by default 256 MiB, or 32 times their size on disk",
        low=1,
    )
    storage: Literal["auto", "memory", "disk"] = setting(
        "auto",
        "memory decodes image files once and keeps them; disk decodes them when they are needed; auto: "
        "disk where they would take more than 1 GiB or a quarter of the memory",
    )
    workers: int | None = setting(
        None,
        "processes that decode images on disk; by default the cores less one, at most 8",
        low=0,
    )
    img_size: tuple[int, int] | int | None = setting(
        None, "height and width to which images are resized, or one for both"
    )
    crop: int | None = setting(
        None,
        "side of the window that the model gets: at a random place in training, else in the middle",
        low=1,
    )
    epoch_size: int | None = setting(
        None, "images of an epoch, drawn anew for each epoch; by default every image once", low=1
    )
    holdout: float | None = setting(
        None,
        "training images kept for validation: a fraction below 1, or a count; by default 0.1, or "
        "none where the data has an official validation split, which is then used",
        valid=(lambda n: n > 0 and (n <= 1 or n == int(n)), "a fraction below 1 or a whole count"),
    )
    per_class: int | None = setting(
        None, "labeled images of each class to train with; by default all", low=1
    )
    folds: int | None = setting(
        None,
        "train once for each of so many parts of the training images, tested on that part",
        low=2,
    )
    fold: int | None = setting(None, "with folds: train for this one alone, counted from 1", low=1)
    balance: bool = setting(
        False, "draw training images so that all classes are equally frequent in an epoch"
    )
    label_column: str | None = setting(
        None,
        "column of a .csv with the labels; several, separated by commas, for several labels an image",
    )
    value_column: str | None = setting(
        None,
        "column of a .csv with a number of each image, to be predicted; several, separated by commas",
    )
    label_separator: str | None = setting(
        None,
        "text between the labels of an image in a column of a .csv, such as '|', of any number",
        valid=(bool, "a character or more"),
    )
    group_column: str | None = setting(
        None,
        "column of a .csv that names the object of an image; images of one object stay on one side "
        "of a split",
    )
    group_pattern: str | None = setting(
        None,
        "regular expression that is searched in the path of an image; its first group in "
        "parentheses names the object",
    )
    skip_damaged: bool = setting(False, "leave out image files that cannot be read")

    @property
    def options(self) -> Json:
        """How image files are read, as `load_dataset` takes it."""
        return {name: getattr(self, name) for name in vars(ReadOptions())}


@dataclass(frozen=True)
class TaskSettings(SettingsGroup):
    """Task, loss and metrics."""

    name: str = setting(
        "auto",
        "auto: the task that the model declares and the data allows; regress predicts numbers, such as "
        "the values of an .npz",
        name="task",
    )
    loss: str = setting("auto", "auto: the loss of the model's paper")
    reconstruction: float | None = setting(
        None,
        "weight of the summed squared error of a reconstruction per 784 values of an image; by default 0.0005 "
        "with the margin loss and a decoder, else 0, which leaves it out",
        low=0,
    )
    label_smoothing: float = setting(
        0.0,
        "share of the target of cross-entropy that is divided among all classes; 0 is off",
        low=0,
        high=1,
    )
    class_weights: Literal["none", "auto"] | None = setting(
        None,
        "auto: the rarer the class, the more its images count in the loss; by default that of the "
        "task, none for classes and auto for masks",
    )
    metrics: tuple[str, ...] = setting(
        (), "further metrics by name, such as brier_score, if the task gives their inputs"
    )


@dataclass(frozen=True)
class OptimizerSettings(SettingsGroup):
    """How weights are updated."""

    name: str = setting("adam", "adam, adamw, sgd, or a registered one", name="optimizer")
    options: Json = setting(  # noqa: RUF009
        {}, "the optimizer's own options by name", name="optimizer_options"
    )
    lr: float | None = setting(
        None,
        "peak learning rate; by default that of the task, 0.001 for classes",
        valid=(lambda lr: lr > 0, "a number above 0"),
    )
    weight_decay: float = setting(0.0, "decay of every weight in each step; 0 is off", low=0)
    lr_scale: Json = setting(  # noqa: RUF009
        {}, 'factors of the learning rate by patterns of parameter names, such as "stem.*": 0.1'
    )
    momentum: float | None = setting(
        None, "momentum of sgd, by default 0.9; 0 is off", low=0, high=1, of="optimizer"
    )
    nesterov: bool = setting(False, "use Nesterov's momentum in sgd", of="optimizer")
    clip: float | Literal["auto"] = setting(
        "auto",
        "largest norm of the gradient; 0: no limit; auto: no limit for the spread loss, else 1",
        low=0,
    )
    accumulate: int = setting(
        1, "batches whose gradients make one update: batch_size times as many images", low=1
    )
    ema: float = setting(
        0.0,
        "decay of an exponential moving average of the weights, which is validated and kept in "
        "their place; 0 is off",
        low=0,
        valid=(lambda decay: decay < 1, "a number in [0, 1)"),
    )
    freeze: tuple[str, ...] = setting(
        (), "patterns of names of parameters that are not trained, such as stem.*"
    )


@dataclass(frozen=True)
class ScheduleSettings(SettingsGroup):
    """Learning rate over time."""

    name: str | None = setting(
        None,
        "by default that of the task, warmup_cosine for classes: it rises for 5 % of the steps, "
        "but at least for the smaller of 40 and half of them, and falls to zero along a cosine; cosine falls so "
        "from the start; constant rises and stays; paper is lr * 0.96 ** (step / 2000) as in the "
        "authors' code of 2017; steps falls by a factor at milestones; exponential falls by a "
        "factor after each epoch, to a tenth at the lowest; or a registered one",
        name="schedule",
    )
    milestones: tuple[int, ...] = setting(
        (), "epochs after which the learning rate falls, with the schedule steps", of="schedule"
    )
    decay: float | None = setting(
        None,
        "factor by which the rate falls, with the schedules steps and exponential; by default 0.1",
        low=0,
        high=1,
        of="schedule",
    )


@dataclass(frozen=True)
class TrainingSettings(SettingsGroup):
    """Length of the training, device, and what is stored."""

    epochs: int = setting(10, "passes over the training images", low=1)
    batch_size: int | None = setting(
        None, "images of a batch; by default 8 to 128, by the number of images", low=1
    )
    patience: int | None = setting(
        None, "end the training after so many epochs in a row without a better one", low=1
    )
    stop_at: float | None = setting(
        None,
        "end the training after the first epoch with this score on held-out images, and keep that epoch's model",
        valid=(lambda score: 0 < score <= 1, "a score in (0, 1]"),
    )
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = setting(
        "auto",
        "auto: bf16 if the hardware has instructions for it, else fp32; tf32, fp16: on a GPU only",
    )
    deterministic: bool = setting(
        False, "take only operations that give the same bits each time, so that a GPU's run repeats"
    )
    graph: Literal["auto", "yes", "no"] = setting(
        "auto",
        "take a GPU's step as one CUDA graph, which the host only starts; yes refuses to do without",
    )
    device: str = setting("auto", "auto, cpu, cuda, cuda:1, ...")
    seed: int = setting(
        0,
        "seed of order, augmentation and split; in train, of the weights too",
        low=0,
        high=LARGEST_SEED,
    )
    checkpoint_every: int = setting(
        100, "steps between checkpoints; there is also one after each epoch", low=1
    )
    keep_epochs: bool = setting(False, "keep the model of every epoch, to be measured afterwards")
    callbacks: tuple[str, ...] = setting((), "names of registered callbacks")
    log: tuple[str, ...] = setting((), "figures and drawings also for tensorboard, mlflow")
    extended_at: tuple[int, ...] = setting(
        (),
        "epochs after which the finished training was extended; set by a resume with more epochs",
    )


@dataclass(frozen=True)
class TrainConfig:
    """A training run: settings in groups, each with a class of its own.

    Attributes:
        model: name of the model, and its options.
        data: data set, sizes and crop of its images, and the part held out.
        task: task, loss, weight of reconstruction, label smoothing, and metrics.
        optimizer: optimizer, learning rates, weight decay, clipping, accumulation of gradients,
            average of the weights, and frozen parameters.
        schedule: schedule of the learning rate, and its milestones.
        augmentation: settings of all augmentations; its class is made from those that are
            registered.
        training: epochs, batch size, precision, device, seed, checkpoints and callbacks.
        origins: where values come from, by the names of settings: "given", "recipe", "model" (the
            one that is trained by its name), "task", "data" or "default", which is also that of
            the names that are not there.

    Example:
        >>> config = TrainConfig.of(model="capsnet", data="digits", epochs=3)
        >>> config.training.epochs
        3
    """

    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    task: TaskSettings = field(default_factory=TaskSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    augmentation: Any = field(default_factory=lambda: groups()["augmentation"]())  # noqa: PLW0108
    training: TrainingSettings = field(default_factory=TrainingSettings)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, **settings: Any) -> "TrainConfig":
        """A run of these settings, by their names without groups, or by groups.

        Args:
            settings: by name, such as `epochs=3`, or by group, such as `training={"epochs": 3}`;
                the others have their defaults.

        Returns:
            The configuration.

        Raises:
            ValueError: a value of another kind, or out of range.
            UnknownNameError: a name that is no setting.
        """
        return cls.from_dict(settings)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], origin: str = "given") -> "TrainConfig":
        """The inverse of `to_dict`; it also reads settings without groups.

        Args:
            values: settings by name, or by group.
            origin: of these values, such as "recipe".

        Returns:
            The configuration.

        Raises:
            ValueError: no mapping, a value of another kind, or out of range.
            UnknownNameError: a name that is no setting.
        """
        return cls().replaced(flattened(values), origin)

    def to_dict(self) -> Json:
        """JSON-ready, by groups."""
        return {group: asdict(getattr(self, group)) for group in groups()}

    def flat(self) -> Json:
        """Every setting by its name without a group."""
        return {
            name: getattr(getattr(self, info.group), info.key)
            for name, info in known_settings().items()
        }

    def updated(self, origin: str = "given", /, **changes: Any) -> "TrainConfig":
        """A copy with changes.

        Another optimizer or schedule comes with the defaults of the settings that only some
        optimizers or schedules read: the momentum of sgd does not outlive a change to adam.

        Args:
            origin: of the new values.
            changes: settings by name, or by group; None changes nothing.

        Returns:
            The changed copy.

        Raises:
            ValueError: a value of another kind, or out of range.
            UnknownNameError: a name that is no setting.
        """
        updates = {name: x for name, x in flattened(changes).items() if x is not None}
        choices = self.flat()
        resets = {
            name: info.default
            for name, info in known_settings().items()
            if info.of in updates and updates[info.of] != choices[info.of]
        }
        return self.replaced(resets, "default").replaced(updates, origin)

    def filled(self, defaults: Mapping[str, Any], origin: str = "default") -> "TrainConfig":
        """A copy in which defaults take the place of open settings: those of None or "auto".

        Args:
            defaults: by name, without groups.
            origin: of these values.

        Returns:
            The copy.
        """
        choices = self.flat()
        changes = {
            name: default
            for name, default in defaults.items()
            if choices[name] in OPEN and choices[name] == known_settings()[name].default
        }
        return self.replaced(changes, origin)

    def replaced(self, changes: Mapping[str, Any], origin: str) -> "TrainConfig":
        """A copy with other values; see `updated`.

        Args:
            changes: settings by name, without groups; None is a value like others.
            origin: of these values.

        Returns:
            The copy.
        """
        if not changes:
            return self
        infos = known_settings()
        updated: Json = {"origins": {**self.origins, **dict.fromkeys(changes, origin)}}
        for group, settings_class in groups().items():
            values = {
                infos[name].key: changes[name] for name in changes if infos[name].group == group
            }
            updated[group] = settings_class(**vars(getattr(self, group)) | values)
        return replace(self, **updated)


class SettingInfo(NamedTuple):
    """Facts about one setting.

    Attributes:
        group: name of its group.
        key: its name in the group.
        about: what it is, in one line, for help.
        type: of its value.
        default: its value where a run says nothing.
        of: name of the setting whose choices declare whether they read this one, or None.
    """

    group: str
    key: str
    about: str
    type: Any
    default: Any
    of: str | None


def groups() -> Json:
    """The classes of the groups by name. That of augmentations grows with what is registered."""
    return _tables(tuple(ordered_augmentations()))[0]


def known_settings() -> dict[str, SettingInfo]:
    """Every setting by its name without a group. ValueError: two settings have the same name."""
    return _tables(tuple(ordered_augmentations()))[1]


@cache
def _tables(
    augmentations: tuple[Augmentation, ...],
) -> tuple[Json, dict[str, SettingInfo]]:
    """The groups and all settings; those of these augmentations are fields of one group."""
    columns = [
        (
            f.name,
            field_types(augmentation.settings)[f.name],
            field(default=f.default, metadata=f.metadata),
        )
        for augmentation in augmentations
        for f in fields(augmentation.settings)
    ]
    augmentation_settings: Any = make_dataclass(
        "AugmentationSettings",
        columns,
        bases=(SettingsGroup,),
        namespace={"__module__": __name__, "__doc__": "How training images are changed at random."},
        frozen=True,
    )
    globals()["AugmentationSettings"] = augmentation_settings  # for pickle
    classes = {
        "model": ModelSettings,
        "data": DataSettings,
        "task": TaskSettings,
        "optimizer": OptimizerSettings,
        "schedule": ScheduleSettings,
        "augmentation": augmentation_settings,
        "training": TrainingSettings,
    }
    infos: dict[str, SettingInfo] = {}
    for group, settings_class in classes.items():
        types = field_types(settings_class)
        for key, default in vars(settings_class()).items():
            metadata = settings_class.__dataclass_fields__[key].metadata
            name = metadata["name"] or key
            if name in infos:
                raise ValueError(
                    f"the setting {name!r} of {group} is one of {infos[name].group} already; "
                    "expected another name"
                )
            infos[name] = SettingInfo(
                group, key, metadata["about"], types[key], default, metadata["of"]
            )
    return classes, infos


def flattened(values: Mapping[str, Any]) -> Json:
    """Settings by their names without groups.

    Args:
        values: settings by their names, and mappings of settings by the names of groups.

    Raises:
        ValueError: no mapping.
        UnknownNameError: a name that is neither a setting nor a group.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"expected names with values, got {values!r}")
    infos = known_settings()
    settings: Json = {}
    for name, value in values.items():
        if name in groups() and isinstance(value, Mapping):
            flat_names = {one.key: flat for flat, one in infos.items() if one.group == name}
            for key, member in value.items():
                check_known(f"setting of {name}", key, flat_names)
                settings[flat_names[key]] = member
        elif name in infos:
            settings[name] = value
        else:
            names = [*infos, *groups()]
            raise UnknownNameError("setting", name, names, plugins.unknown_note(name, names))
    return settings


known_settings()  # makes the settings of the augmentations of the package, which a pickle names
