#!/usr/bin/env python3
"""Makes the labels that examples/heads-tiny.yaml trains on beside the text, in examples/data/.

For each byte of corpus.train.npy and corpus.validation.npy (scripts/prepare_corpus.sh makes them):
how long the word is that it stands in, up to 15, in *.word_length.npy, and whether that word begins
with a capital, in *.capital.npy; -1 outside of words. Needs nothing but Python. Does nothing when
they are there.

    scripts/label_corpus.py
"""
import array
import os
import re
import struct
import sys

FOLDER = "examples/data"
LONGEST = 15


def read_npy(path):
    with open(path, "rb") as file:
        prefix = file.read(10)
        if prefix[:8] != b"\x93NUMPY\x01\x00":
            sys.exit(f"scripts/label_corpus.py: {path} is no .npy of version 1.0")
        header = file.read(struct.unpack("<H", prefix[8:])[0])
        if b"'|u1'" not in header:
            sys.exit(f"scripts/label_corpus.py: {path} does not hold bytes")
        return file.read()


def write_npy(path, labels):
    header = f"{{'descr': '|i1', 'fortran_order': False, 'shape': ({len(labels)},), }}"
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    with open(path + ".tmp", "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
        file.write(labels.tobytes())
    os.rename(path + ".tmp", path)


def label(corpus):
    lengths_path, capitals_path = f"{corpus}.word_length.npy", f"{corpus}.capital.npy"
    if os.path.exists(lengths_path) and os.path.exists(capitals_path):
        print(f"labels: {lengths_path} and {capitals_path} are there")
        return
    if not os.path.exists(corpus + ".npy"):
        sys.exit(f"scripts/label_corpus.py: no {corpus}.npy: scripts/prepare_corpus.sh makes it")
    text = read_npy(corpus + ".npy")
    lengths = array.array("b", [-1]) * len(text)
    capitals = array.array("b", [-1]) * len(text)
    for word in re.finditer(rb"[A-Za-z]+", text):
        size = word.end() - word.start()
        lengths[word.start():word.end()] = array.array("b", [min(size, LONGEST)]) * size
        capital = text[word.start():word.start() + 1].isupper()
        capitals[word.start():word.end()] = array.array("b", [int(capital)]) * size
    write_npy(lengths_path, lengths)
    write_npy(capitals_path, capitals)
    print(f"labels: made {lengths_path} and {capitals_path}")


def main():
    os.chdir(os.path.dirname(os.path.abspath(__file__)) + "/..")
    for corpus in ("corpus.train", "corpus.validation"):
        label(f"{FOLDER}/{corpus}")


if __name__ == "__main__":
    main()
