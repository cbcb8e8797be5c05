"""Runs a test with the client that blocks, and with the one that is awaited."""

import asyncio

import milepost


def both(case):
    """Runs a coroutine's test with the client that is awaited, and with the one that blocks."""
    def run(self):
        for make in (milepost.AsyncClient, Blocking):
            with self.subTest(make.__name__):
                asyncio.run(case(self, make))
    return run


class Awaited:
    """What blocks, as if it were to be awaited."""

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if not callable(found):
            return found

        def call(*arguments, **options):
            answer = found(*arguments, **options)
            return Iterated(answer) if hasattr(answer, "__next__") else Answered(answer)
        return call


class Answered:
    def __init__(self, answer):
        self._answer = answer

    def __await__(self):
        yield from ()
        return Awaited(self._answer) if hasattr(self._answer, "updates") else self._answer


class Iterated:
    def __init__(self, items):
        self._items = items

    def __aiter__(self):
        return self

    async def __anext__(self):
        for item in self._items:
            return item
        raise StopAsyncIteration


class Blocking(Awaited):
    def __init__(self, *arguments):
        super().__init__(milepost.Client(*arguments))

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self._inner.close()
