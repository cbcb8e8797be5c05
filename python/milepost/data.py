"""The order of samples, and how far a script is in it: the same at any number of ranks."""

from typing import Any, Dict, Iterator, Optional

from milepost._job import job

__all__ = ["ElasticSampler"]

_MASK = (1 << 64) - 1
_ROUNDS = 6


def _mix(value: int) -> int:
    """SplitMix64's finalizer. https://doi.org/10.1145/2714064.2660195"""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class ElasticSampler:
    """A sampler for torch.utils.data.DataLoader whose order no number of ranks changes.

        sampler = ElasticSampler(len(dataset), epochs=3, seed=1)
        loader = DataLoader(dataset, batch_size=8, sampler=sampler)
        for step, batch in enumerate(loader, start=first_step):
            ...
            sampler.advance(8 * world_size)
        milepost.checkpoint.save({"sampler": sampler.state_dict(), ...}, step)

    The samples of all epochs stand in one line. Place p holds a sample that depends on the seed and
    on p alone. The ranks take turns: of the places that are left, rank r takes the r-th, and then
    every world_size-th. So a job that goes on at another number of ranks sees every sample once an
    epoch, and its global batches of equal size hold the same samples. Up to world_size - 1 places
    at the very end are left out, so that all ranks have equally many.

    No memory is needed for the order, whatever the length: a Feistel network permutes it (Black and
    Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). Not thread-safe.
    """

    def __init__(
        self,
        length: int,
        *,
        epochs: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        rank: Optional[int] = None,
        world_size: Optional[int] = None,
    ) -> None:
        """`rank` and `world_size`: those of the job, or 0 and 1 outside one, unless given."""
        if length < 1 or epochs < 1:
            raise ValueError(f"length and epochs must be at least 1, not {length} and {epochs}")
        here = job()
        self._rank = rank if rank is not None else here.rank if here else 0
        self._world = world_size if world_size is not None else here.world_size if here else 1
        if not 0 <= self._rank < self._world:
            raise ValueError(f"rank must be in [0, {self._world}), not {self._rank}")
        self._length, self._epochs, self._seed, self._shuffle = length, epochs, seed, shuffle
        self._half = max(1, (length - 1).bit_length() + 1 >> 1)
        self._consumed = 0

    @property
    def consumed(self) -> int:
        """How many places all ranks together have trained on."""
        return self._consumed

    def advance(self, samples: int) -> None:
        """Says that all ranks together have trained on `samples` more. The loader may be ahead."""
        self._consumed = min(self._consumed + samples, self._length * self._epochs)

    def __len__(self) -> int:
        return (self._length * self._epochs - self._consumed) // self._world

    def __iter__(self) -> Iterator[int]:
        first = self._consumed + self._rank
        for i in range(len(self)):
            yield self.sample_at(first + i * self._world)

    def sample_at(self, place: int) -> int:
        """The sample at a place of the line, which the seed, the length and the place decide."""
        epoch, index = divmod(place, self._length)
        if not self._shuffle or self._length == 1:
            return index
        key = _mix((self._seed * 0x9E3779B97F4A7C15 + epoch) & _MASK)
        while True:  # until it lands within the length; at most four times on average
            index = self._permute(index, key)
            if index < self._length:
                return index

    def _permute(self, index: int, key: int) -> int:
        half = self._half
        mask = (1 << half) - 1
        left, right = index >> half, index & mask
        for i in range(_ROUNDS):
            left, right = right, left ^ (_mix(key + right * _ROUNDS + i) & mask)
        return left << half | right

    def state_dict(self) -> Dict[str, Any]:
        return {"seed": self._seed, "length": self._length, "consumed": self._consumed}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        """ValueError: the state is of another order."""
        for name, own in (("seed", self._seed), ("length", self._length)):
            if state[name] != own:
                raise ValueError(f"the state has {name} {state[name]}, this sampler {own}")
        self._consumed = state["consumed"]
