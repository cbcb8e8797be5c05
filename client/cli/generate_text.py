"""Between text and token ids. `milepost generate` runs it on both sides of the model, and
`milepost serve` beside it.

    python3 generate_text.py ids TOKENIZER PROMPT MESSAGE   writes the prompt's ids: 1,2,3
    python3 generate_text.py text TOKENIZER COUNT MESSAGE   reads ids with blanks between them
    python3 generate_text.py serve TOKENIZER                answers line by line, in JSON

TOKENIZER is a folder, or a tokenizer.json. MESSAGE is 1 where the prompt is a message of a chat,
which the tokenizer's template renders, else 0. `text` writes text as ids come. The first COUNT are
the prompt's, which are not shown of a chat. Behind them it ends at a token that ends answers. Exit
code 3: a package is missing, which stderr names. 4: a message for the user is on stderr. 5: it has
ended before the ids: at such a token, or because nobody reads the text.

`serve` first says {"ids": [those that end answers], "no_chat": why there are no chats, or ""}, or
{"missing": package} or {"error": message}, and ends. Then it answers each line of stdin:

    {"text": TEXT}                            {"ids": [...]}
    {"messages": [...], "arguments": {...}}   {"ids": [...]}: rendered by the template
    {"begin": IDS, "stream": S}               {}: a new text, behind these ids
    {"id": ID, "stream": S}                   {"text": what it adds to that text}
    {"end": S}                                {}: of that text no more comes
    {"decode": IDS}                           {"texts": what each adds to the text of them all}
    {"pieces": IDS}                           {"texts": of each by itself}

{"error": message} instead: this cannot be done.
"""

import json
import os
import sys


class Failed(Exception):
    """A message for the user."""


class Missing(Exception):
    """A package that is not installed."""


def fail(message):
    raise Failed(message)


def missing(package):
    raise Missing(package)


def folder_of(path):
    return path if os.path.isdir(path) else os.path.dirname(path) or "."


def tokenizer_at(path):
    try:
        from tokenizers import Tokenizer
    except ImportError:
        missing("tokenizers")
    file = os.path.join(path, "tokenizer.json") if os.path.isdir(path) else path
    try:
        tokenizer = Tokenizer.from_file(file)
    except Exception as error:
        fail(f"{file}: not a tokenizer.json: {error}")
    # A file may say that texts are cut, or filled up: that was for another use.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def settings(path, name):
    try:
        with open(os.path.join(folder_of(path), name), encoding="utf-8") as file:
            read = json.load(file)
        return read if isinstance(read, dict) else {}
    except (OSError, ValueError):
        return {}


def ends(path, tokenizer):
    """The ids that end what a model says."""
    found = set()
    for name in ("generation_config.json", "config.json"):
        ids = settings(path, name).get("eos_token_id")
        ids = ids if isinstance(ids, list) else [ids]
        found.update(one for one in ids if isinstance(one, int))
    token = settings(path, "tokenizer_config.json").get("eos_token")
    token = token.get("content") if isinstance(token, dict) else token
    if isinstance(token, str):
        found.add(tokenizer.token_to_id(token))
    return found - {None}


def rendered(path, prompt):
    try:
        from transformers import AutoTokenizer
    except ImportError:
        missing("transformers")
    try:
        chat = AutoTokenizer.from_pretrained(folder_of(path))
        messages = [{"role": "user", "content": prompt}]
        return chat.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:
        fail(f"{folder_of(path)}: its chat template cannot render the prompt: {error}")


def has_template(path):
    templates = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")
    return "chat_template" in settings(path, "tokenizer_config.json") or any(
        os.path.exists(os.path.join(folder_of(path), name)) for name in templates)


def chat_of(path):
    """What renders chats; or None, and why."""
    folder = folder_of(path)
    if not has_template(path):
        return None, (f"{folder} has no chat template, which a chat needs: start `milepost serve` "
                      "with --tokenizer of a folder that has one, or use /v1/completions")
    try:
        from transformers import AutoTokenizer
    except ImportError:
        return None, ("a chat needs the Python package `transformers`: pip install 'transformers' "
                      "(in the environment of the python3 on PATH), and start `milepost serve` "
                      "again; or use /v1/completions")
    try:
        return AutoTokenizer.from_pretrained(folder), ""
    except Exception as error:
        return None, f"{folder}: its chat template cannot be read: {error}"


class Answers:
    """To the lines of `serve`."""

    def __init__(self, path):
        self.path, self.tokenizer = path, tokenizer_at(path)
        try:
            from tokenizers.decoders import DecodeStream
        except ImportError:
            missing("tokenizers>=0.21")
        self.new_stream = lambda: DecodeStream(skip_special_tokens=True)
        self.streams = {}  # of texts under way
        self.some = self.some_token()
        self.chat, self.no_chat = chat_of(path)

    def first(self):
        return {"ids": sorted(ends(self.path, self.tokenizer)), "no_chat": self.no_chat}

    def ids(self, text, special):
        ids = self.tokenizer.encode(text, add_special_tokens=special).ids
        return {"ids": ids} if ids else {"error": "the prompt gives no tokens: give some text"}

    def rendered(self, messages, arguments):
        try:
            return self.chat.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, **arguments)
        except Exception as error:
            fail(f"the chat template cannot render these messages: {error}")

    def begin(self, ids, name):
        stream = self.streams[name] = self.new_stream()
        # Those before do not change how the next one is written.
        for number in ids[-64:]:
            stream.step(self.tokenizer, number)
        return {}

    def end(self, name):
        self.streams.pop(name, None)
        return {}

    def some_token(self):
        """Of any text."""
        try:
            return self.tokenizer.encode("a", add_special_tokens=False).ids[-1]
        except Exception:  # a vocabulary without it
            return 0

    def added(self, ids):
        """What each adds to the text of them all."""
        stream = self.new_stream()
        return [stream.step(self.tokenizer, number) or "" for number in ids]

    def piece(self, number):
        """A token's text where others are before it; its name where it is a part of a character."""
        name = self.tokenizer.id_to_token(number)
        both = self.tokenizer.decode([self.some, number], skip_special_tokens=False)
        before = self.tokenizer.decode([self.some], skip_special_tokens=False)
        text = both[len(before):] if both.startswith(before) else ""
        return name or "" if not text or "\ufffd" in text else text

    def answer(self, line):
        if "pieces" in line:
            return {"texts": [self.piece(number) for number in line["pieces"]]}
        if "decode" in line:
            return {"texts": self.added(line["decode"])}
        if "id" in line:
            stream = self.streams[line["stream"]]
            return {"text": stream.step(self.tokenizer, line["id"]) or ""}
        if "begin" in line:
            return self.begin(line["begin"], line["stream"])
        if "end" in line:
            return self.end(line["end"])
        if "text" in line:
            return self.ids(line["text"], special=True)
        return self.ids(self.rendered(line["messages"], line["arguments"]), special=False)


def serve(path):
    # What packages print is not ours to answer with.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(answer):
        out.write(json.dumps(answer) + "\n")
        out.flush()

    try:
        answers = Answers(path)
    except Missing as package:
        return say({"missing": str(package)})
    except Failed as error:
        return say({"error": str(error)})
    say(answers.first())
    for line in sys.stdin:
        try:
            answer = answers.answer(json.loads(line))
        except Exception as error:
            answer = {"error": str(error) or type(error).__name__}
        say(answer)


def write_ids(path, prompt, message):
    tokenizer = tokenizer_at(path)
    try:
        prompt.encode()
        text = rendered(path, prompt) if message else prompt
        ids = tokenizer.encode(text, add_special_tokens=not message).ids
    except UnicodeEncodeError:
        fail("the prompt is not UTF-8")
    if not ids:
        fail("the prompt gives no tokens: give some text")
    sys.stdout.write(",".join(map(str, ids)))


def ids_of(stream):
    """As they come."""
    rest = b""
    while piece := os.read(stream.fileno(), 65536):
        *whole, rest = (rest + piece).split(b" ")
        yield from (int(one) for one in whole if one.strip())
    if rest.strip():
        yield int(rest)


def shown(text, terminal):
    """A model may have learnt what rings a terminal's bell or hides its lines."""
    if not terminal:
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def write_text(path, count, message):
    tokenizer = tokenizer_at(path)
    try:
        from tokenizers.decoders import DecodeStream
    except ImportError:
        missing("tokenizers>=0.21")
    stream, last = DecodeStream(skip_special_tokens=True), ends(path, tokenizer)
    terminal = sys.stdout.isatty()
    ended = False
    for place, number in enumerate(ids_of(sys.stdin)):
        ended = place >= count and number in last
        if ended:
            break
        if message and place < count:
            continue
        text = stream.step(tokenizer, number)
        if text:
            sys.stdout.buffer.write(shown(text, terminal).encode("utf-8", "replace"))
            sys.stdout.buffer.flush()
    sys.stdout.buffer.write(b"\n")
    sys.stdout.buffer.flush()
    if ended:
        sys.exit(5)


def main():
    mode, path = sys.argv[1:3]
    try:
        if mode == "serve":
            serve(path)
        elif mode == "ids":
            write_ids(path, sys.argv[3], sys.argv[4] == "1")
        else:
            write_text(path, int(sys.argv[3]), sys.argv[4] == "1")
    except Missing as package:
        sys.stderr.write(str(package))
        sys.exit(3)
    except Failed as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(4)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing is flushed at the end
        sys.exit(5)  # nobody reads on
    except OSError as error:
        sys.stderr.write(f"cannot write to stdout: {error.strerror}\n")
        sys.exit(4)


if __name__ == "__main__":
    main()
