"""Between text and token ids. `milepost generate` runs it on both sides of the model.

    python3 generate_text.py ids TOKENIZER PROMPT MESSAGE   writes the prompt's ids: 1,2,3
    python3 generate_text.py text TOKENIZER COUNT MESSAGE   reads ids with blanks between them

TOKENIZER is a folder, or a tokenizer.json. MESSAGE is 1 where the prompt is a message of a chat,
which the tokenizer's template renders, else 0. `text` writes text as ids come. The first COUNT are
the prompt's, which are not shown of a chat. Behind them it ends at a token that ends answers. Exit
code 3: a package is missing, which stderr names. 4: a message for the user is on stderr. 5: it has
ended before the ids: at such a token, or because nobody reads the text.
"""

import json
import os
import sys


def fail(message):
    sys.stderr.write(message + "\n")
    sys.exit(4)


def missing(package):
    sys.stderr.write(package)
    sys.exit(3)


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
    mode, path, given, message = sys.argv[1:5]
    try:
        if mode == "ids":
            write_ids(path, given, message == "1")
        else:
            write_text(path, int(given), message == "1")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing is flushed at the end
        sys.exit(5)  # nobody reads on
    except OSError as error:
        fail(f"cannot write to stdout: {error.strerror}")


if __name__ == "__main__":
    main()
