# how: many
import abc
import dataclasses
import enum
import typing

import nets
import seen
import torch
from torch import nn

T = typing.TypeVar("T")
asked = []


@dataclasses.dataclass(eq=True)
class Data(nn.Module):
    """Compares by value: all of them are equal."""

    width: int = 8
    __hash__ = nn.Module.__hash__

    def __post_init__(self):
        super().__init__()
        self.net = nets.Net(self.width)

    def forward(self, x):
        return self.net(x)


@dataclasses.dataclass(eq=False, repr=False)
class Configured(nn.Module):
    names: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        nn.Module.__init__(self)
        self.net = nets.Net()

    def forward(self, x):
        return self.net(x)


class Slots(nn.Module):
    __slots__ = ("extra", "net_of_slot")

    def __init__(self):
        super().__init__()
        self.extra, self.net = 3, nets.Net()
        object.__setattr__(self, "net_of_slot", self.net)

    def forward(self, x):
        return self.net_of_slot(x)


class Of(nn.Module, typing.Generic[T]):
    def __init__(self):
        super().__init__()
        self.net = nets.Net()

    def forward(self, x):
        return self.net(x)


class Base(nn.Module, abc.ABC):
    @abc.abstractmethod
    def forward(self, x): ...


class Concrete(Base):
    def __init__(self):
        super().__init__()
        self.net = nets.Net()

    def forward(self, x):
        return self.net(x)


class Kind(enum.Enum):
    NET = nets.Net()  # a model that is a member

    def __call__(self, x):
        return self.value(x)

    def parameters(self):
        return self.value.parameters()


class Single(type):
    held: typing.ClassVar[dict] = {}

    def __call__(cls, *args, **kwargs):
        if cls not in Single.held:
            Single.held[cls] = super().__call__(*args, **kwargs)
        return Single.held[cls]


class Only(nn.Module, metaclass=Single):
    def __init__(self):
        super().__init__()
        self.net = nets.Net()

    def forward(self, x):
        return self.net(x)


class Delegates(nn.Module):
    """Answers for whatever it holds, and for names that nothing has."""

    def __init__(self):
        super().__init__()
        self.net = nets.Net()

    def forward(self, x):
        return self.net(x)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            asked.append(name)
            if name.startswith("__"):
                raise
            return getattr(self.net, name)


class Watched(nn.Module):
    """Notes every attribute that is read or set from outside of torch."""

    def __init__(self):
        super().__init__()
        self.net = nets.Net()

    def forward(self, x):
        return self.net(x)

    def __getattribute__(self, name):
        asked.append(name)
        return super().__getattribute__(name)

    def __setattr__(self, name, value):
        asked.append(f"={name}")
        super().__setattr__(name, value)


class Refuses(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nets.Net()

    def forward(self, x):
        return self.net(x)

    def __getattr__(self, name):
        if name not in ("net",):
            raise RuntimeError(f"no {name}")  # and no AttributeError
        return super().__getattr__(name)


made = [
    Data(),
    Configured(["a"]),
    Slots(),
    Of[int](),
    Concrete(),
    Kind.NET,
    Only(),
    Delegates(),
    Watched(),
    Refuses(),
]
for model in made:
    asked.clear()
    optimizer = torch.optim.SGD(
        nn.Module.parameters(model) if isinstance(model, nn.Module) else model.parameters(), 0.1
    )
    for _ in range(70):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 8)).square().mean()
        loss.backward()
        optimizer.step()
    seen.say(
        type(model).__name__, loss.item().hex(), sorted((name, asked.count(name)) for name in set(asked))
    )
seen.say(Data() == Data(), Only() is made[6], Slots.__slots__, sorted(vars(made[1])))
