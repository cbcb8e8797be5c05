"""What tokenize_hugging_face.py reads: a tokenizer, and inputs as texts, examples and pairs.

    reader = Reader(Vocabulary("tokenizer.json"), field="", loss="completions")
    for document, size, begins in reader.pieces("chats.jsonl"):
        ...

What cannot be read ends the program, with a message on stderr (fail, missing).
"""

import json
import os
import sys

PIECE_BYTES = 1 << 20  # of a plain text, cut at line breaks, where a cut changes tokens
FREE_PIECE_BYTES = 1 << 16  # where it changes none: short texts are encoded at twice the speed
BATCH = 256  # documents of JSON lines that are encoded at once, on all cores
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
            return self.plain_text(place, document)
        except UnicodeEncodeError as error:  # JSON may have halves of surrogate pairs
            fail(f"{place}: the text is not Unicode: {error}")

    def plain_text(self, place, document):
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
