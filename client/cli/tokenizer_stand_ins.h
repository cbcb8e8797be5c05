// For tests: stand-ins for the Python packages `tokenizers` and `transformers`. A token is a
// character's code. "|" (124) ends answers, "#" (35) documents. A template has a role's letter, the
// text and what ends it.
#ifndef MILEPOST_CLIENT_CLI_TOKENIZER_STAND_INS_H_
#define MILEPOST_CLIENT_CLI_TOKENIZER_STAND_INS_H_

namespace milepost::client {

inline constexpr char kTokenizersStandIn[] = R"py(
class Encoding:
    def __init__(self, text, begin):
        # "~" is of the token behind it.
        places = [i for i, c in enumerate(text) if c != "~"]
        self.ids = ([94] if begin else []) + [ord(text[i]) for i in places]
        first = [i - 1 if i > 0 and text[i - 1] == "~" else i for i in places]
        self.offsets = ([(0, 0)] if begin else []) + [(b, i + 1) for b, i in zip(first, places)]
        self.special_tokens_mask = ([1] if begin else []) + [0] * len(places)
class Tokenizer:
    @staticmethod
    def from_file(path): return Tokenizer()
    def no_truncation(self): pass
    def no_padding(self): pass
    def get_added_tokens_decoder(self):
        added = Encoding("", False)
        added.content, added.special = "|", True
        return {124: added}
    def get_vocab_size(self): return 256
    def token_to_id(self, name): return {"|": 124, "<|endoftext|>": 35}.get(name)
    def encode(self, text, add_special_tokens): return Encoding(text, add_special_tokens)
    def encode_batch(self, texts, add_special_tokens):
        return [self.encode(text, add_special_tokens) for text in texts]
)py";
inline constexpr char kTransformersStandIn[] = R"py(
class AutoTokenizer:
    @staticmethod
    def from_pretrained(folder): return AutoTokenizer()
    def apply_chat_template(self, messages, tools, tokenize, add_generation_prompt, thoughts=False,
                            think="", system=""):
        text = system
        for i, message in enumerate(messages):
            if message["role"] == "none":
                raise ValueError("unknown role")
            thought = thoughts and message["role"] == "assistant" and i + 1 == len(messages)
            text += message["role"][0] + ":" + ("*" if thought else "") + message["content"] + "|"
        return text + ("a:" + think if add_generation_prompt else "")
)py";

// For generated text: "^" (94) is put before a text that is to have special tokens.
inline constexpr char kGeneratingTokenizersStandIn[] = R"py(
import sys, types
class Encoding:
    def __init__(self, ids): self.ids = ids
class Tokenizer:
    @staticmethod
    def from_file(path):
        open(path)
        return Tokenizer()
    def no_truncation(self): pass
    def no_padding(self): pass
    def token_to_id(self, name): return ord(name) if len(name) == 1 else None
    def encode(self, text, add_special_tokens):
        text.encode()
        return Encoding(([94] if add_special_tokens and text else []) + [ord(c) for c in text])
decoders = types.ModuleType("tokenizers.decoders")
class DecodeStream:
    def __init__(self, skip_special_tokens): pass
    def step(self, tokenizer, number): return None if number == 94 else chr(number)
decoders.DecodeStream = DecodeStream
sys.modules["tokenizers.decoders"] = decoders
)py";
inline constexpr char kGeneratingTransformersStandIn[] = R"py(
class AutoTokenizer:
    @staticmethod
    def from_pretrained(folder): return AutoTokenizer()
    def apply_chat_template(self, messages, tokenize, add_generation_prompt, loud=False):
        if loud:
            print("what a package prints is no answer")
        if messages[0]["role"] == "assistant":
            raise ValueError("a user speaks first")
        text = "".join("u:" + one["content"] + "|" for one in messages) + "a:"
        return text.upper() if loud else text
)py";

}  // namespace milepost::client

#endif  // MILEPOST_CLIENT_CLI_TOKENIZER_STAND_INS_H_
