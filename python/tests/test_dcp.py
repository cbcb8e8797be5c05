"""What torch.distributed.checkpoint saves: boxes as ranges, and descriptions. Where there is
PyTorch, whole saves and loads too, through a rank's process that a server of the test stands for.
"""

import itertools
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from milepost import MilepostError
from milepost._dcp_items import Item, span_of, structure_of
from milepost._tensors import PICKLE, Form
from test_job import Rank, run_script

try:
    import torch
except ImportError:
    torch = None


def boxes(shape):
    """All offsets and sizes of boxes of a tensor."""
    ranges = [[(begin, end - begin) for begin in range(size + 1) for end in range(begin, size + 1)]
              for size in shape]
    for one in itertools.product(*ranges):
        yield [offset for offset, _ in one], [size for _, size in one]


def elements(shape, offsets, sizes):
    """Numbers of a box's elements, flat and row-major."""
    found = []
    for place in itertools.product(*(range(size) for size in sizes)):
        number = 0
        for size, offset, step in zip(shape, offsets, place):
            number = number * size + offset + step
        found.append(number)
    return found


def tensor_item(fqn, shape, offsets, sizes, cut=False, path=None):
    return Item(fqn, path, Form("torch", "float32", shape, 4), offsets, sizes, cut)


class ItemsTest(unittest.TestCase):
    def test_a_box_is_a_range_only_where_its_elements_follow_each_other(self):
        for shape in ((), (3,), (2, 3), (1, 4), (3, 1), (2, 2, 3), (2, 1, 2)):
            for offsets, sizes in boxes(shape):
                numbers = elements(shape, offsets, sizes)
                follows = numbers == list(range(numbers[0], numbers[0] + len(numbers))) \
                    if numbers else True
                span = span_of(shape, offsets, sizes)
                self.assertEqual(span is not None, follows, (shape, offsets, sizes))
                if span is not None and numbers:
                    self.assertEqual(span, (numbers[0], numbers[-1] + 1))

    def test_a_cut_box_is_a_tensor_of_its_own(self):
        whole = tensor_item("w", (4, 6), (2, 0), (2, 6))
        self.assertEqual((whole.name, whole.stored.shape, whole.box((1, 0))), ("w", (4, 6), (3, 0)))
        cut = tensor_item("w", (4, 6), (2, 3), (2, 3), cut=True)
        self.assertEqual((cut.name, cut.stored.shape, cut.box((1, 0))), ("w@2,3", (2, 3), (1, 0)))
        for item in (whole, cut):
            self.assertEqual(Item.from_json(item.to_json()), item)

    def test_the_lists_of_all_ranks_are_a_state(self):
        lr = Item("o.groups.0.lr", ("o", "groups", 0, "lr"), Form(PICKLE, "uint8", (9,), 1), (0,),
                  (9,), False)
        halves = [tensor_item("m.w", (4,), (at,), (2,), path=("m", "w")) for at in (0, 2)]
        tensor = {"tensor": "m.w", "form": ["torch", "float32", [4], 4]}
        pickled = {"tensor": "o.groups.0.lr", "form": [PICKLE, "uint8", [9], 1]}
        groups = {"list": [{"dict": [["lr", pickled]]}]}
        self.assertEqual(
            structure_of([halves[0], lr, halves[1], tensor_item("x", (), (), ())]),
            {"dict": [["m", {"dict": [["w", tensor]]}], ["o", {"dict": [["groups", groups]]}],
                      ["x", {"tensor": "x", "form": ["torch", "float32", [], 4]}]]},
        )
        with self.assertRaisesRegex(MilepostError, "'w' was saved in parts.*StorageReader"):
            structure_of([tensor_item("w", (4, 6), (2, 3), (2, 3), cut=True)])


SAVE = """
import torch, warnings
import torch.distributed.checkpoint as dcp
import milepost.dcp
warnings.simplefilter("ignore")  # there is no process group
state = {"w": torch.arange(6.0).reshape(2, 3), "n": 5, "b": torch.ones(3, dtype=torch.bfloat16)}
"""


@unittest.skipIf(torch is None, "there is no PyTorch")
class StorageTest(unittest.TestCase):
    def test_what_is_saved_is_claimed_described_and_comes_back(self):
        rank = Rank()
        run_script(self, SAVE + """
dcp.save(state, storage_writer=milepost.dcp.StorageWriter(40))
""", rank)
        self.assertEqual(rank.paths(), ["/checkpoint/claim", "/checkpoint/save"])
        save = rank.posted[1][1]
        self.assertEqual((save["step"], save["alone"]), (40, False))
        self.assertIn(["w", "tensor", "F32", [2, 3]], save["tensors"])
        self.assertEqual(save["tensors"][-1][:2], ["rank0.structure", "rank_structure"])
        rank.hold("checkpoints/7", save)
        said = run_script(self, SAVE + """
found = {"w": torch.zeros(3, 2, dtype=torch.float64).t(), "n": 0, "b": torch.zeros(3)}
reader = milepost.dcp.StorageReader()
dcp.load(found, storage_reader=reader)
assert torch.equal(found["w"], state["w"].double()), found
assert found["n"] == 5 and found["b"].tolist() == [1, 1, 1], found
start = milepost.checkpoint.load()
assert torch.equal(start.state["w"], state["w"]) and start.state["n"] == 5, start
try:
    dcp.load({"other": torch.zeros(1)}, storage_reader=reader)
except BaseException as error:  # DCP's is no Exception
    assert "other" in str(error), error
print(reader.name, reader.step)
""", rank)
        self.assertEqual(said, "checkpoints/7 40\n")

    def test_reading_through_load_runs_no_code(self):
        rank = Rank()
        run_script(self, SAVE + """
class Evil:
    def __reduce__(self):
        return print, ("code ran",)
dcp.save({"e": Evil()}, storage_writer=milepost.dcp.StorageWriter(1))
""", rank)
        rank.hold("checkpoints/1", rank.posted[1][1])
        said = run_script(self, """
try:
    milepost.checkpoint.load()
except milepost.MilepostError as error:
    print("refused" if "['e']: cannot be read" in str(error) else error)
""", rank)
        self.assertEqual(said, "refused\n")

    def test_a_failure_is_told_to_the_other_ranks(self):
        rank = Rank({"/checkpoint/save": (400, "expected a step\n")})
        said = run_script(self, SAVE + """
class Planner(dcp.DefaultSavePlanner):
    def resolve_data(self, item):
        raise RuntimeError("no luck")
try:
    dcp.save(state, storage_writer=milepost.dcp.StorageWriter(1), planner=Planner())
except BaseException as error:
    print("no luck" in str(error))
""", rank)
        self.assertEqual(said, "True\n")
        self.assertEqual(rank.posted[1], ("/checkpoint/save", {}))

    def test_without_a_checkpoint_there_is_nothing_to_load(self):
        rank = Rank({"/checkpoint/manifest": (204, "")})
        said = run_script(self, SAVE + """
import logging
logging.disable()
reader = milepost.dcp.StorageReader()
print(reader.step, reader.name)
try:
    dcp.load(state, storage_reader=reader)
except BaseException as error:
    print("no checkpoint to begin with" in str(error))
""", rank)
        self.assertEqual(said, "None None\nTrue\n")

    def test_a_step_that_was_saved_is_passed_over(self):
        rank = Rank({"/checkpoint/claim": (200, '{"saved": true}')})
        run_script(self, SAVE + "dcp.save(state, storage_writer=milepost.dcp.StorageWriter(1))",
                   rank)
        self.assertEqual(rank.paths(), ["/checkpoint/claim"])


if __name__ == "__main__":
    unittest.main()
