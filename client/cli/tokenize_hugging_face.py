"""Turns text into token ids. `milepost dataset tokenize` runs it and reads what it writes.

    python3 tokenize_hugging_face.py TOKENIZER FRACTION SEPARATOR FIELD LENGTH LOSS INPUT...

TOKENIZER is a tokenizer.json or a folder that has one. FRACTION is the part for validation. Empty
texts and a LENGTH of 0 stand for what is not given. LOSS is `completions` or `all`.

It writes to stdout, little-endian: the vocabulary's size (u64), whether there are masks (u8; 2: and
pairs), the separator's id (u32; none: 2^32 - 1) and its text (u32 bytes, then these). Then frames
of one byte (0: training, 1: validation), a count (u32), that many ids (u32) and, with masks, as
many bytes: 1 for a target. At last a frame 2 whose count is that of the documents, and two more
counts: of those that were cut to LENGTH, and of those that were left out, because nothing in them
is a target or a pair is longer. Exit code 3: a package is missing, which stderr names. 4: a message
for the user is on stderr.

Documents are files, or lines of JSON, or rows of Parquet files and of folders of `datasets`
(save_to_disk). A row is as a line of JSON. A line may be an example: `messages`, or `prompt` and
`completion`. Examples have masks, by which answers alone are targets. A line may be a pair of
examples: `prompt`, `chosen` and `rejected`.
"""

import bisect
import itertools
import json
import struct
import sys

from tokenize_inputs import BATCH, END_OF_TEXT, Example, Pair, Reader, Vocabulary, bytes_of, fail

PIECES = 16  # of a plain text that are encoded at once, on all cores
OPEN_SAMPLES = 256  # that are being packed at once


class Output:
    """Writes frames."""

    def __init__(self, masks):
        self.out = sys.stdout.buffer
        self.masks = masks

    def header(self, vocabulary, separator):
        name, number = separator if separator else ("", 0xFFFFFFFF)
        shown = name.encode()
        size = vocabulary.tokenizer.get_vocab_size()
        self.out.write(struct.pack("<QBII", size, self.masks, number, len(shown)) + shown)

    def write(self, part, ids, mask=None):
        for i in range(0, len(ids), 65536):
            some = ids[i : i + 65536]
            self.out.write(struct.pack(f"<BI{len(some)}I", part, len(some), *some))
            if self.masks:
                self.out.write(bytes(mask[i : i + 65536]))

    def end(self, documents, cut, left_out):
        self.out.write(struct.pack("<BIII", 2, documents, cut, left_out))
        self.out.flush()


class Packer:
    """Puts whole examples into samples of `length` tokens: each into the fullest with room for it.

    What stays free is filled with separators, which are documents of their own and no targets.
    """

    def __init__(self, part, length, separator, output):
        self.part, self.length, self.separator, self.output = part, length, separator, output
        self.open = []  # lists of ids and masks
        self.any = False

    def add(self, ids, mask):
        fitting = [one for one in self.open if len(one[0]) + len(ids) <= self.length]
        if fitting:
            sample = max(fitting, key=lambda one: len(one[0]))
        else:
            if len(self.open) == OPEN_SAMPLES:
                self.close(max(self.open, key=lambda one: len(one[0])))
            sample = ([], [])
            self.open.append(sample)
        sample[0].extend(ids)
        sample[1].extend(mask)
        if len(sample[0]) == self.length:
            self.close(sample)

    def close(self, sample):
        self.any = True
        self.open = [one for one in self.open if one is not sample]
        free = self.length - len(sample[0])
        self.output.write(self.part, sample[0] + [self.separator] * free, sample[1] + [0] * free)

    def end(self):
        for sample in list(self.open):
            self.close(sample)
        if self.any:  # the last sample has a target behind it
            self.output.write(self.part, [self.separator], [0])


class Texts:
    """Documents of text, with the separator between them."""

    def __init__(self, vocabulary, separator):
        self.tokenizer = vocabulary.tokenizer
        self.separator = separator[1] if separator else None
        self.output = Output(masks=0)
        self.output.header(vocabulary, separator)
        self.filled = [False, False]

    def add(self, part, texts):
        """Of texts and whether a document begins with each."""
        encode = getattr(self.tokenizer, "encode_batch_fast", self.tokenizer.encode_batch)
        encoded = encode([text for text, _ in texts], add_special_tokens=False)
        for encoding, (_, begins) in zip(encoded, texts):
            ids = encoding.ids
            if begins and self.filled[part] and self.separator is not None:
                ids = [self.separator, *ids]
            self.filled[part] = self.filled[part] or len(ids) > 0
            self.output.write(part, ids)

    def end(self, documents):
        self.output.end(documents, 0, 0)


class Examples:
    """Examples with masks, packed where there is a length, or pairs of them."""

    def __init__(self, vocabulary, separator_name, length, first):
        self.vocabulary, self.length = vocabulary, length
        self.pairs = isinstance(first, Pair)
        if self.pairs and length == 0:
            fail(f"{first.place}: a sample holds whole pairs: give --sequence-length")
        self.eos = vocabulary.end()
        self.separator = self.choose(separator_name, first)
        self.output = Output(masks=2 if self.pairs else 1)
        self.output.header(vocabulary, self.separator)
        self.packers = [Packer(part, length, self.separator[1], self.output) for part in (0, 1)]
        self.cut = self.left_out = 0

    def choose(self, name, first):
        """The token that ends documents: one that the first example does not have."""
        if name:
            number = self.vocabulary.id_of(name)
            return (name, number) if number is not None else no_token(self.vocabulary, name)
        names = self.vocabulary.names
        if not first.whole and self.eos:
            return self.eos
        has = set(self.vocabulary.tokenizer.encode(first.text, add_special_tokens=False).ids)
        usual = [names.get("eos_token"), names.get("pad_token"), *END_OF_TEXT]
        for one in [*usual, names.get("unk_token")]:
            number = self.vocabulary.id_of(one)
            if number is not None and number not in has:
                return one, number
        fail(
            f"{first.place}: no token of a usual name can end documents, because they have it "
            "within: --separator names one that they do not have"
        )

    def add(self, part, examples):
        examples = [example for example, _ in examples]
        for example in examples:
            if isinstance(example, Pair) != self.pairs:
                fail(f"{example.place}: the inputs have pairs and examples: make a file of each")
        if self.pairs:
            made = self.encoded([example for pair in examples for example in pair.both])
            for (chosen, learned), (rejected, also) in zip(made, made):
                self.add_pair(part, chosen + rejected, learned, also)
            return
        for ids, mask in self.encoded(examples):
            self.add_one(part, ids, mask)

    def encoded(self, examples):
        for whole, some in itertools.groupby(examples, key=lambda example: example.whole):
            some = list(some)
            encoded = self.vocabulary.tokenizer.encode_batch(
                [example.text for example in some], add_special_tokens=not whole
            )
            for example, encoding in zip(some, encoded):
                yield self.ended(example, encoding)

    def ended(self, example, encoding):
        """Ids and mask of an example, with what ends it."""
        ids, mask = list(encoding.ids), [0] * len(encoding.ids)
        # Those that the tokenizer adds around a text are at no place of it.
        added = encoding.special_tokens_mask
        first = added.index(0) if 0 in added else 0
        places = encoding.offsets[first : first + added.count(0)]
        begins, ends = [begin for begin, _ in places], [end for _, end in places]
        for begin, end in example.spans:
            # With a token that begins before the answer and reaches into it.
            low, high = bisect.bisect_right(ends, begin), bisect.bisect_left(begins, end)
            mask[first + low : first + high] = [1] * (high - low)
        if not example.whole and self.eos:
            if not ids or ids[-1] != self.eos[1]:
                ids.append(self.eos[1])
                mask.append(0)
            mask[-1] = 1  # an answer's end is learned too
        if not ids or ids[-1] != self.separator[1]:
            ids.append(self.separator[1])
            mask.append(0)
        if self.separator[1] in ids[:-1]:
            fail(
                f"{example.place}: has the token '{self.separator[0]}' within, which would end the "
                "document there: --separator names one that no document has"
            )
        mask[0] = 0  # nothing is before it
        return ids, mask

    def add_pair(self, part, ids, learned, also):
        if len(ids) > self.length or not any(learned) or not any(also):
            self.left_out += 1  # cut, they would not be compared by what was said
            return
        self.packers[part].add(ids, learned + also)

    def add_one(self, part, ids, mask):
        longer = self.length > 0 and len(ids) > self.length
        if longer:
            ids, mask = ids[: self.length], mask[: self.length]
        if not any(mask):
            self.left_out += 1
            return
        self.cut += longer
        if self.length > 0:
            self.packers[part].add(ids, mask)
        else:
            self.output.write(part, ids, mask)

    def end(self, documents):
        for packer in self.packers:
            packer.end()
        self.output.end(documents, self.cut, self.left_out)


def no_token(vocabulary, name):
    fail(f"--separator: {vocabulary.path} has no token '{name}'")


def looks_like_example(text):
    try:
        first = json.loads(text.split("\n", 1)[0]) if text.startswith("{") else None
    except (ValueError, RecursionError):
        return False
    has = set(first) if isinstance(first, dict) else set()
    pair = {"chosen", "rejected"} <= has
    return pair or "messages" in has or {"prompt", "completion"} <= has


def sink_for(vocabulary, separator, length, takes_texts, first):
    if isinstance(first, (Example, Pair)):
        return Examples(vocabulary, separator, length, first)
    if looks_like_example(first):
        fail("an input has lines of examples: name it .jsonl, so that they are read as such")
    if length > 0 and not takes_texts:
        fail(
            "--sequence-length is for examples: lines of 'messages', of 'prompt' and 'completion', "
            "or of 'chosen' and 'rejected'"
        )
    if separator and vocabulary.id_of(separator) is None:
        no_token(vocabulary, separator)
    return Texts(vocabulary, vocabulary.first_of([separator] if separator else END_OF_TEXT))


def parts(text, bytes_left):
    """A text cut behind the line that has the split."""
    lines = text.splitlines(keepends=True)
    kept, size = 0, 0
    while kept < len(lines) and size < bytes_left:
        size += len(lines[kept].encode())
        kept += 1
    return "".join(lines[:kept]), "".join(lines[kept:])


class Run:
    """Reads all inputs, cuts them into the two parts and encodes batches."""

    def __init__(self, arguments):
        path, fraction, self.separator, field, length, loss, texts = arguments[:7]
        self.paths = arguments[7:]
        self.takes_texts = texts == "taken"  # also with a length of samples
        self.fraction, self.length = float(fraction), int(length)
        self.vocabulary = Vocabulary(path)
        self.reader = Reader(self.vocabulary, field, loss)
        self.sink = None
        self.waiting = [[], []]
        self.documents = 0
        self.path = ""
        self.lines = False

    def give(self, part, document, begins):
        if self.sink is None:
            self.sink = sink_for(
                self.vocabulary, self.separator, self.length, self.takes_texts, document
            )
        if isinstance(document, (Example, Pair)) != isinstance(self.sink, Examples):
            fail("the inputs have texts and examples: make a file of each")
        self.waiting[part].append((document, begins))
        most = BATCH if self.lines else PIECES if self.reader.cuts_freely else 1
        if len(self.waiting[part]) == most:
            self.flush(part)

    def flush(self, part):
        if self.waiting[part]:
            self.sink.add(part, self.waiting[part])
        self.waiting[part] = []

    def run(self):
        split = sum(map(bytes_of, self.paths)) * (1 - self.fraction)
        seen = 0
        for path in self.paths:
            self.path = path
            self.lines = self.reader.has_lines(path)
            for document, size, begins in self.reader.pieces(path):
                self.documents += begins
                if self.fraction == 0 or seen + size <= split:
                    self.give(0, document, begins)
                elif seen >= split or self.lines:
                    self.give(1, document, begins)
                else:
                    first, second = parts(document, split - seen)
                    self.give(0, first, begins)
                    self.give(1, second, False)
                seen += size
            self.flush(0)
            self.flush(1)
        if self.sink is None:
            self.sink = sink_for(self.vocabulary, self.separator, 0, True, "")
        self.sink.end(self.documents)


def main():
    run = Run(sys.argv[1:])
    try:
        run.run()
    except UnicodeDecodeError as error:
        fail(f"{run.path}: not UTF-8: {error}")
    except OSError as error:
        fail(f"cannot read {error.filename}: {error}")


if __name__ == "__main__":
    main()
