"""State dicts to descriptions and back, and the order of samples. PyTorch's and NumPy's part where
they are."""

import itertools
import json
import os
import sys
import unittest
from array import array

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from milepost import MilepostError, checkpoint, data
from milepost import _reader, _tensors, _tree

try:
    import numpy
except ImportError:
    numpy = None
try:
    import torch
except ImportError:
    torch = None


def round_trip(state, into=None, strict=True):
    """Through the bytes that a checkpoint would hold."""
    structure, leaves = _tree.flatten(state)
    parts = checkpoint.Parts()
    for leaf in leaves:
        parts.add(leaf.form, leaf.name, "tensor", _tensors.part_to_save(leaf.value, True, True))
    memory = bytearray(max(parts.size, 1))
    parts.copy(memory)
    said = parts.to_json()
    places = {said["tensors"][number][0]: (begin, end, at)
              for number, begin, end, at in said["pieces"]}

    def fetch(name, form, target, place):
        sink = _tensors.sink_for(form, target, place)
        if name in places:
            begin, end, at = (x for x in places[name])
            size = form.stored_element
            assert (begin * size, end * size) == (sink.begin, sink.end)
            sink.take(sink.begin, memory, at, sink.end - sink.begin)
        return _reader.Later(sink)

    tree = _tree.unflatten(json.loads(json.dumps(structure)), fetch, into, strict)
    return _reader.finish(tree, into)


class TreeTest(unittest.TestCase):
    def test_what_is_no_tensor_comes_back_equal(self):
        state = {"a": [1, 2.5, None, True, "x"], 3: (b"\0\xff", {"b": ()}), "inf": float("inf")}
        self.assertEqual(round_trip(state), state)
        self.assertEqual(list(round_trip({2: 0, 1: 0})), [2, 1])

    def test_arrays(self):
        state = {"x": array("f", [1, 2, 3]), "empty": array("d"), "n": [array("q", [-5])]}
        self.assertEqual(round_trip(state), state)
        target = {"x": array("f", [0, 0, 0]), "empty": array("d"), "n": [array("q", [0])]}
        x = target["x"]
        self.assertIs(round_trip(state, target), target)
        self.assertIs(target["x"], x)
        self.assertEqual(x[2], 3)

    def test_names_are_different(self):
        _, leaves = _tree.flatten({"a.b": array("f", [1]), "a": {"b": array("f", [2])}})
        self.assertEqual([leaf.name for leaf in leaves], ["a.b", "a.b'"])

    def test_what_cannot_be_saved_is_named(self):
        for state, place in ((object(), "state: a object"),
                             ({"m": [1, {1, 2}]}, "['m']['1']: a set"),
                             ({(1, 2): 3}, "the key (1, 2)"), ({True: 3}, "the key True")):
            with self.assertRaises(TypeError) as caught:
                _tree.flatten(state)
            self.assertIn(place, str(caught.exception))

    def test_what_does_not_fit_changes_nothing(self):
        state = {"x": array("f", [1, 2])}
        target = {"x": array("f", [0, 0]), "new": 1}
        with self.assertRaisesRegex(MilepostError, "the checkpoint has no 'new'"):
            round_trip(state, target)
        self.assertEqual(target, {"x": array("f", [0, 0]), "new": 1})
        round_trip(state, target, strict=False)
        self.assertEqual(target, {"x": array("f", [1, 2]), "new": 1})
        with self.assertRaisesRegex(MilepostError, r"shape \[2\], not \[3\]"):
            round_trip(state, {"x": array("f", [0, 0, 0])})
        with self.assertRaisesRegex(MilepostError, "is a tensor in the checkpoint, not a dict"):
            round_trip(state, {"x": {}})
        with self.assertRaisesRegex(MilepostError, r"'x'.*the checkpoint has a list of 1"):
            round_trip({"x": [1]}, {"x": [1, 2]})
        with self.assertRaisesRegex(MilepostError, "the checkpoint has a dict"):
            round_trip(state, [1])

    @unittest.skipIf(numpy is None, "there is no NumPy")
    def test_numpy(self):
        for dtype in ("float32", "float16", "int8", "bool", "uint64", "complex64"):
            for shape in ((), (0,), (2, 3)):
                value = numpy.arange(6, dtype="int64").astype(dtype)[: int(numpy.prod(shape))]
                back = round_trip({"v": value.reshape(shape)})["v"]
                self.assertEqual((back.dtype, back.shape), (numpy.dtype(dtype), shape))
                numpy.testing.assert_array_equal(back, value.reshape(shape))
        for value in (numpy.array(["text"]), numpy.array([b"x"]), numpy.ma.array([1], mask=[1]),
                      numpy.array([1], dtype=">i4"), numpy.array([{}])):
            with self.assertRaises(TypeError):
                _tree.flatten(value)
        turned = numpy.arange(6.0).reshape(2, 3).T
        numpy.testing.assert_array_equal(round_trip([turned])[0], turned)
        self.assertEqual(round_trip(numpy.float32(0.1)), float(numpy.float32(0.1)))

    @unittest.skipIf(torch is None, "there is no PyTorch")
    def test_torch(self):
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64,
                      torch.bool, torch.int8, torch.complex64, torch.float8_e4m3fn):
            value = torch.arange(6).to(dtype).reshape(2, 3)
            back = round_trip({"v": value})["v"]
            self.assertEqual(back.dtype, dtype)
            self.assertTrue(torch.equal(back.view(torch.uint8), value.view(torch.uint8)))
        for value in (torch.tensor(3.0), torch.empty(0), torch.arange(6.0).reshape(2, 3).t()):
            self.assertTrue(torch.equal(round_trip([value])[0], value))
        for target in (torch.zeros(2, 3, device="meta"), torch.zeros(1, 3).expand(2, 3)):
            with self.assertRaisesRegex(MilepostError, "no memory for each element"):
                round_trip({"v": torch.ones(2, 3)}, {"v": target})
        target = {"v": torch.zeros(3, 2, dtype=torch.float64).t()}
        v = target["v"]
        round_trip({"v": torch.ones(2, 3)}, target)
        self.assertTrue(torch.equal(v, torch.ones(2, 3, dtype=torch.float64)))

    @unittest.skipIf(torch is None, "there is no PyTorch")
    def test_bytes_at_any_place(self):
        source = torch.arange(64, dtype=torch.uint8)
        memory = bytearray(68)
        for base in range(5):  # a storage may begin anywhere
            storage = torch.frombuffer(memory, dtype=torch.uint8, offset=base, count=64)
            for begin, offset, size in itertools.product(range(5), range(5), (0, 1, 4, 7, 8)):
                storage.zero_()
                _tensors.copy_bytes(source[begin : begin + size], storage[offset : offset + size])
                wanted = torch.zeros(64, dtype=torch.uint8)
                wanted[offset : offset + size] = source[begin : begin + size]
                self.assertTrue(torch.equal(storage, wanted), (base, begin, offset, size))

    @unittest.skipIf(torch is None, "there is no PyTorch")
    def test_an_optimizer(self):
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        back = round_trip(optimizer.state_dict())
        other = torch.optim.AdamW(model.parameters())
        other.load_state_dict(back)
        for mine, theirs in zip(other.state.values(), optimizer.state.values()):
            for name in theirs:
                self.assertTrue(torch.equal(mine[name], theirs[name]))


class ElasticSamplerTest(unittest.TestCase):
    def test_every_sample_once_an_epoch(self):
        for length in (1, 2, 3, 5, 64, 65, 1000):
            sampler = data.ElasticSampler(length, epochs=3, seed=9)
            order = list(sampler)
            for epoch in range(3):
                seen = order[epoch * length : (epoch + 1) * length]
                self.assertEqual(sorted(seen), list(range(length)))
        self.assertNotEqual(order[:1000], order[1000:2000])
        self.assertNotEqual(order[:1000], list(data.ElasticSampler(1000, seed=8)))
        self.assertEqual(list(data.ElasticSampler(3, epochs=2, shuffle=False)), [0, 1, 2] * 2)

    def test_another_number_of_ranks_goes_on(self):
        whole = list(data.ElasticSampler(1000, epochs=2, seed=1))
        seen, state = [], None
        for world, steps in ((4, 20), (3, 10), (1, 50), (8, 5)):
            ranks = [data.ElasticSampler(1000, epochs=2, seed=1, rank=r, world_size=world)
                     for r in range(world)]
            if state is not None:
                for sampler in ranks:
                    sampler.load_state_dict(state)
            orders = [iter(sampler) for sampler in ranks]
            for _ in range(steps):
                seen += [next(order) for order in orders]
                for sampler in ranks:
                    sampler.advance(world)
            state = ranks[0].state_dict()
        self.assertEqual(seen, whole[: len(seen)])

    def test_the_order_never_changes(self):
        # A job that resumes with a newer version has to go on in the same order.
        sampler = data.ElasticSampler(1000, seed=3)
        self.assertEqual([sampler.sample_at(i) for i in (0, 1, 2, 999, 1000)],
                         [156, 902, 377, 329, 375])

    def test_another_order_is_refused(self):
        state = data.ElasticSampler(10, seed=1).state_dict()
        with self.assertRaisesRegex(ValueError, "seed 1, this sampler 2"):
            data.ElasticSampler(10, seed=2).load_state_dict(state)
        with self.assertRaisesRegex(ValueError, "length 10, this sampler 11"):
            data.ElasticSampler(11, seed=1).load_state_dict(state)


if __name__ == "__main__":
    unittest.main()
