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
import os
import struct
import sys

PIECE_BYTES = 1 << 20  # of a plain text, cut at line breaks, where a cut changes tokens
FREE_PIECE_BYTES = 1 << 16  # where it changes none: short texts are encoded at twice the speed
BATCH = 256  # documents of JSON lines that are encoded at once, on all cores
PIECES = 16  # of a plain text, likewise
OPEN_SAMPLES = 256  # that are being packed at once
PROBE = "\u2402milepost\u2403"  # an answer that no chat has
END_OF_TEXT = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]"]


def fail(message):
    sys.stderr.write(message + "\n")
    sys.exit(4)


def missing(package):
    sys.stderr.write(package)
    sys.exit(3)


def has_rows(path):
    return path.endswith((".parquet", ".arrow")) or os.path.isdir(path)


def bytes_of(path):
    """Of a file, or of a folder's files that are read."""
    return sum(map(os.path.getsize, arrow_files(path)))


def rows_of(path):
    """Yields (place, row as a mapping, its share of the bytes) of a Parquet or Arrow file, or of a
    folder of `datasets`. In memory are some hundred rows, or a file's own batch if it is larger."""
    try:
        import pyarrow
    except ImportError:
        missing("pyarrow")
    try:
        for file in arrow_files(path):
            batches, count = open_rows(pyarrow, file)
            number, size = 0, os.path.getsize(file) / max(count, 1)
            for batch in batches:
                for begin in range(0, batch.num_rows, BATCH):
                    for row in batch.slice(begin, BATCH).to_pylist():
                        number += 1
                        yield f"{file}: row {number}", without_none(row), size
    except (pyarrow.ArrowException, OSError, MemoryError, OverflowError, ValueError) as error:
        fail(f"{path}: cannot be read: {str(error) or 'it wants more memory than there is'}")


def without_none(value):
    """A row has a value for every column, and each message one for every key of any."""
    if isinstance(value, dict):
        return {key: without_none(one) for key, one in value.items() if one is not None}
    return [without_none(one) for one in value] if isinstance(value, list) else value


def open_rows(pyarrow, file):
    """The batches of a file, and how many rows they have."""
    if file.endswith(".parquet"):
        import pyarrow.parquet

        table = pyarrow.parquet.ParquetFile(file)
        return table.iter_batches(batch_size=BATCH), table.metadata.num_rows
    mapped = pyarrow.memory_map(file)
    count = sum(batch.num_rows for batch in pyarrow.ipc.open_stream(mapped))
    return pyarrow.ipc.open_stream(pyarrow.memory_map(file)), count


def arrow_files(path):
    if not os.path.isdir(path):
        return [path]
    try:
        with open(os.path.join(path, "state.json"), encoding="utf-8") as file:
            names = [one["filename"] for one in json.load(file)["_data_files"]]
    except FileNotFoundError:
        splits = sorted(one for one in os.listdir(path) if os.path.isdir(os.path.join(path, one)))
        has = f"name one of its parts: {', '.join(splits)}" if splits else "it has no state.json"
        fail(f"{path}: is no folder of `datasets` (save_to_disk): {has}")
    except (ValueError, LookupError, TypeError) as error:
        fail(f"{path}/state.json: does not list the files: {error}")
    if not all(isinstance(name, str) and os.path.basename(name) == name for name in names):
        fail(f"{path}/state.json: names files outside the folder")
    return [os.path.join(path, name) for name in names]


class Vocabulary:
    """The tokenizer, and what the files beside it say about it."""

    def __init__(self, path):
        self.folder = path if os.path.isdir(path) else os.path.dirname(path)
        self.path = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path
        try:
            from tokenizers import Tokenizer
        except ImportError:
            missing("tokenizers")
        try:
            self.tokenizer = Tokenizer.from_file(self.path)
        except Exception as error:
            fail(f"{self.path}: not a tokenizer.json: {error}")
        # A file may say that texts are cut, or filled up: that was for another use.
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        added = self.tokenizer.get_added_tokens_decoder().values()
        special = [one.content for one in added if one.special]
        self.special = sorted(special, key=len, reverse=True)  # texts
        self.names = {}
        try:
            with open(os.path.join(self.folder, "tokenizer_config.json"), encoding="utf-8") as file:
                config = json.load(file)
            for key in ("eos_token", "pad_token", "unk_token"):
                value = config.get(key)
                name = value.get("content") if isinstance(value, dict) else value
                if isinstance(name, str):
                    self.names[key] = name
        except (OSError, ValueError, AttributeError):
            pass  # a tokenizer.json alone will do
        self._chat = None

    def may_cut(self):
        """Whether a text may be cut behind a line break that no blank follows."""
        parts = ("a\nb", "a\n", "b")
        ids = [self.tokenizer.encode(text, add_special_tokens=False).ids for text in parts]
        return ids[0] == ids[1] + ids[2]

    def id_of(self, name):
        return None if name is None else self.tokenizer.token_to_id(name)

    def first_of(self, names):
        for name in names:
            number = self.id_of(name)
            if number is not None:
                return name, number
        return None

    def end(self):
        """The token that ends an answer."""
        return self.first_of([self.names.get("eos_token"), *END_OF_TEXT])

    def chat(self):
        if self._chat is None:
            try:
                from transformers import AutoTokenizer
            except ImportError:
                missing("transformers")
            try:
                self._chat = AutoTokenizer.from_pretrained(self.folder or ".")
            except Exception as error:
                fail(f"{self.folder or '.'}: not a folder with a tokenizer for chats: {error}")
        return self._chat


class Example:
    """A text and the parts of it that are targets."""

    def __init__(self, place, text, spans, whole):
        self.place = place
        self.text = text
        self.spans = spans  # of characters
        self.whole = whole  # rendered by a template: no token is added


class Pair:
    """Two examples, of which the first is preferred."""

    def __init__(self, chosen, rejected):
        self.both = (chosen, rejected)
        self.place, self.text, self.whole = chosen.place, chosen.text, chosen.whole


class Reader:
    """Yields (text, Example or Pair, bytes of the input, whether a document begins)."""

    def __init__(self, vocabulary, field, loss):
        self.vocabulary = vocabulary
        self.field = field
        self.loss = loss
        self.cuts_freely = vocabulary.may_cut()

    def has_lines(self, path):
        return self.field != "" or path.endswith((".jsonl", ".ndjson")) or has_rows(path)

    def pieces(self, path):
        if has_rows(path):
            for place, row, size in rows_of(path):
                yield self.row(place, row), size, True
            return
        with open(path, encoding="utf-8-sig", newline="") as file:
            if self.has_lines(path):
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield self.document(f"{path}:{number}", line), len(line.encode()), True
                return
            begins = True
            for text in self.texts(file):
                yield text, len(text.encode()), begins
                begins = False

    def texts(self, file):
        if not self.cuts_freely:
            while lines := file.readlines(PIECE_BYTES):
                yield "".join(lines)
            return
        lines = file.readlines(FREE_PIECE_BYTES)
        while lines:
            following = file.readlines(FREE_PIECE_BYTES)
            # A blank belongs to the break before it; most lines begin with none.
            size = sum(map(len, lines))
            while following and following[0][:1].isspace() and size < PIECE_BYTES:
                size += len(following[0])
                lines.append(following.pop(0))
                following = following or file.readlines(FREE_PIECE_BYTES)
            yield "".join(lines)
            lines = following

    def document(self, place, line):
        try:
            document = json.loads(line)
        except (ValueError, RecursionError) as error:
            fail(f"{place}: not JSON: {error}")
        return self.row(place, document)

    def row(self, place, document):
        example = self.field == "" and isinstance(document, dict) and "text" not in document
        try:
            if example and "chosen" in document and "rejected" in document:
                return self.pair(place, document)
            if example and "messages" in document:
                return self.chat(place, document, document["messages"], 0)
            if example and "prompt" in document and "completion" in document:
                return self.completion(place, document)
            wanted = self.field or "text"
            text = document.get(wanted) if isinstance(document, dict) else None
            if not isinstance(text, str):
                has = ", ".join(sorted(document)[:8]) if isinstance(document, dict) else "no fields"
                fail(
                    f"{place}: has no text '{wanted}' but {has}: --field names the text; examples "
                    "have 'messages', or 'prompt' and 'completion'; pairs 'chosen' and 'rejected'"
                )
            text.encode()
            return text
        except UnicodeEncodeError as error:  # JSON may have halves of surrogate pairs
            fail(f"{place}: the text is not Unicode: {error}")

    def pair(self, place, document):
        answers = document["chosen"], document["rejected"]
        prompt = document.get("prompt")
        if prompt is None:  # chats that begin alike
            if not all(isinstance(answer, list) for answer in answers):
                fail(f"{place}: texts in 'chosen' and 'rejected' need a 'prompt'")
            alike = [a == b for a, b in zip(*answers)]
            shared = alike.index(False) if False in alike else len(alike)
            prompt, answers = answers[0][:shared], [answer[shared:] for answer in answers]
        return Pair(*(self.answer(place, document, prompt, answer) for answer in answers))

    def completion(self, place, document):
        return self.answer(place, document, document["prompt"], document["completion"])

    def answer(self, place, document, prompt, completion):
        if isinstance(prompt, list) and isinstance(completion, list):
            return self.chat(place, document, prompt + completion, len(prompt))
        if not isinstance(prompt, str) or not isinstance(completion, str):
            fail(f"{place}: a prompt and its answers must all be texts, or lists of messages")
        text = prompt + completion
        text.encode()
        begin = 0 if self.loss == "all" else len(prompt)
        return Example(place, text, [(begin, len(text))], False)

    def chat(self, place, document, messages, first):
        """Of the messages from `first` on those of the assistant are targets."""
        fine = isinstance(messages, list) and len(messages) > 0
        if not fine or not all(isinstance(one, dict) and "role" in one for one in messages):
            fail(f"{place}: 'messages' must be a list of mappings with 'role' and 'content'")
        text = self.render(place, document, messages, False)
        text.encode()
        if self.loss == "all":
            return Example(place, text, [(0, len(text))], True)
        spans = [
            self.span(place, document, messages, i, text)
            for i in range(first, len(messages))
            if messages[i]["role"] == "assistant"
        ]
        return Example(place, text, spans, True)

    def render(self, place, document, messages, prompt):
        try:
            text = self.vocabulary.chat().apply_chat_template(
                messages,
                tools=document.get("tools"),
                tokenize=False,
                add_generation_prompt=prompt,
                **(document.get("chat_template_kwargs") or {}),
            )
        except Exception as error:
            fail(f"{place}: the tokenizer's chat template cannot render this: {error}")
        if not isinstance(text, str):
            fail(f"{place}: the tokenizer's chat template gives no text")
        return text

    def span(self, place, document, messages, i, text):
        """Where the text has the answer messages[i], with what ends it.

        The same chat with another answer in its place tells what is before and behind it.
        """
        other = [*messages[:i], {"role": "assistant", "content": PROBE}, *messages[i + 1 :]]
        header, found, behind = self.render(place, document, other, False).partition(PROBE)
        prompt = self.render(place, document, messages[:i], True) if i > 0 else None
        if prompt is not None and text.startswith(prompt):
            begin = len(prompt)
        else:  # a template without a prompt for an answer, or that changes earlier answers
            begin = len(header) if text.startswith(header) else -1
        end = len(text) - len(behind)
        if not found or begin < 0 or end < begin or not text.endswith(behind):
            fail(
                f"{place}: the chat template renders the rest of the chat by what message {i + 1} "
                "says, so that answer cannot be told from the rest: --loss all makes all tokens "
                "targets"
            )
        blanks = len(text) - end - len(text[end:].lstrip(" "))
        for token in self.vocabulary.special:
            if text.startswith(token, end + blanks):
                end += blanks + len(token)
                break
        return begin, len(text) - len(text[end:].lstrip())


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
