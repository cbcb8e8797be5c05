#include <poll.h>
#include <signal.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/interrupt.h"
#include "client/cli/tokenize.h"
#include "common/status_macros.h"
#include "common/subprocess.h"
#include "engine/data/npy.h"

namespace milepost::client {
namespace {

// Reads the files and writes to stdout: the vocabulary's size (u64) and the separator (u32 bytes,
// then its text; none: empty), then frames of one byte (0: training, 1: validation), a count (u32)
// and that many ids (u32), at last a frame 2 whose count is that of the documents, all
// little-endian. Text goes through the tokenizer in pieces of about 1 MiB that end at line breaks,
// or a document of JSON lines at a time. Exit code 3: the package is missing; 4: a message for the
// user is on stderr.
constexpr char kScript[] = R"py(
import json, os, struct, sys
try:
    from tokenizers import Tokenizer
except ImportError:
    sys.exit(3)
def fail(message):
    sys.stderr.write(message + "\n")
    sys.exit(4)
tokenizer_path, fraction, separator, field = sys.argv[1:5]
fraction, paths = float(fraction), sys.argv[5:]
try:
    tokenizer = Tokenizer.from_file(tokenizer_path)
except Exception as error:
    fail(f"{tokenizer_path}: not a tokenizer.json: {error}")
end_of_text = None
for name in [separator] if separator else [
        "<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]"]:
    end_of_text = tokenizer.token_to_id(name)
    if end_of_text is not None:
        break
if separator and end_of_text is None:
    fail(f"--separator: {tokenizer_path} has no token '{separator}'")
out = sys.stdout.buffer
shown = name.encode() if end_of_text is not None else b""
out.write(struct.pack("<QI", tokenizer.get_vocab_size(), len(shown)) + shown)
def json_lines(path):
    return field != "" or path.endswith((".jsonl", ".ndjson"))
def documents_of_lines(path, file):
    wanted = field or "text"
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except ValueError as error:
            fail(f"{path}:{number}: not JSON: {error}")
        text = document.get(wanted) if isinstance(document, dict) else None
        if not isinstance(text, str):
            has = ", ".join(sorted(document)[:8]) if isinstance(document, dict) else "no fields"
            fail(f"{path}:{number}: has no text '{wanted}' but {has}: --field names the text")
        try:
            text.encode()
        except UnicodeEncodeError as error:  # JSON may have halves of surrogate pairs
            fail(f"{path}:{number}: the text of '{wanted}' is not Unicode: {error}")
        yield text, len(line.encode()), True
def pieces_of(path):
    with open(path, encoding="utf-8", newline="") as file:
        if json_lines(path):
            yield from documents_of_lines(path, file)
            return
        begins = True
        while lines := file.readlines(1 << 20):
            text = "".join(lines)
            yield text, len(text.encode()), begins
            begins = False
filled = [False, False]
documents = 0
def emit(part, text, begins):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    if begins and filled[part] and end_of_text is not None:
        ids = [end_of_text] + ids
    filled[part] = filled[part] or len(ids) > 0
    for i in range(0, len(ids), 65536):
        some = ids[i:i + 65536]
        out.write(struct.pack(f"<BI{len(some)}I", part, len(some), *some))
try:
    split = sum(os.path.getsize(path) for path in paths) * (1 - fraction)
    seen = 0
    for path in paths:
        for text, size, begins in pieces_of(path):
            documents += begins
            if fraction == 0 or seen + size <= split:
                emit(0, text, begins)
            elif seen >= split or json_lines(path):
                emit(1, text, begins)
            else:
                lines = text.splitlines(keepends=True)
                kept, size_kept = 0, 0
                while kept < len(lines) and seen + size_kept < split:
                    size_kept += len(lines[kept].encode())
                    kept += 1
                emit(0, "".join(lines[:kept]), begins)
                emit(1, "".join(lines[kept:]), False)
            seen += size
    out.write(struct.pack("<BI", 2, documents))
    out.flush()
except UnicodeDecodeError as error:
    fail(f"{path}: not UTF-8: {error}")
except OSError as error:
    fail(f"cannot read {path}: {error}")
)py";

// Blocking reads of exactly what is asked for.
class FrameReader {
 public:
  explicit FrameReader(UniqueFd fd) : fd_(std::move(fd)) {}

  // False at the end of the stream or on an error.
  bool Read(void* bytes, size_t size) {
    char* at = static_cast<char*>(bytes);
    while (size > 0) {
      const ssize_t got = read(fd_.get(), at, size);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      at += got;
      size -= got;
    }
    return true;
  }

 private:
  UniqueFd fd_;
};

absl::Status Explain(const ExitResult& end, UniqueFd err) {
  if (end.signal == 0 && end.exit_code == 3) {
    return absl::FailedPreconditionError(
        "a tokenizer.json needs the Python package `tokenizers`: pip install tokenizers (in the "
        "environment of the python3 on PATH), or use --tokenizer bytes");
  }
  std::string message(4096, '\0');
  message.resize(FrameReader(std::move(err)).Read(message.data(), message.size())
                     ? message.size()
                     : strnlen(message.data(), message.size()));
  return absl::InvalidArgumentError(
      absl::StrCat("tokenizing failed (", end.ToString(), "): ", message));
}

struct Copied {
  std::unique_ptr<data::NpyWriter> writers[2];
  TokenizeResult result;
};

// OK is not enough: only the script's end says that all has come.
absl::StatusOr<Copied> CopyFrames(const TokenizeJob& job, FrameReader* reader) {
  constexpr uint32_t kLongestName = 4096;
  const auto early = [] { return absl::UnavailableError("the tokenizer's output ends early"); };
  uint64_t vocabulary = 0;
  uint32_t length = 0;
  if (!reader->Read(&vocabulary, sizeof vocabulary)) return early();
  if (!reader->Read(&length, sizeof length) || length > kLongestName) return early();
  Copied copied;
  copied.result.separator.resize(length);
  if (!reader->Read(copied.result.separator.data(), length)) return early();
  const data::TokenType type =
      vocabulary <= 65536 ? data::TokenType::kUint16 : data::TokenType::kUint32;
  copied.result.vocabulary = static_cast<int64_t>(vocabulary);
  copied.result.dtype = data::Name(type);
  MP_ASSIGN_OR_RETURN(copied.writers[0], data::NpyWriter::Create(job.output, type));
  if (!job.validation_output.empty()) {
    MP_ASSIGN_OR_RETURN(copied.writers[1], data::NpyWriter::Create(job.validation_output, type));
  }
  uint8_t part = 0;
  std::vector<uint32_t> ids;
  while (reader->Read(&part, 1)) {
    uint32_t count = 0;
    if (!reader->Read(&count, sizeof count)) return early();
    if (part == 2) {
      copied.result.documents = count;
      return copied;
    }
    if (part > 2 || !copied.writers[part] || count > 65536) {
      return absl::InternalError("the tokenizer's output is damaged");
    }
    ids.resize(count);
    if (!reader->Read(ids.data(), count * sizeof(uint32_t))) return early();
    MP_RETURN_IF_ERROR(copied.writers[part]->Append(ids));
  }
  return early();
}

absl::StatusOr<TokenizeResult> Finish(Copied copied) {
  TokenizeResult result = std::move(copied.result);
  result.train_tokens = copied.writers[0]->size();
  if (result.train_tokens == 0) return absl::InvalidArgumentError("the input gave no tokens");
  MP_RETURN_IF_ERROR(copied.writers[0]->Finish());
  if (copied.writers[1] == nullptr) return result;
  result.validation_tokens = copied.writers[1]->size();
  MP_RETURN_IF_ERROR(copied.writers[1]->Finish());
  return result;
}

}  // namespace

absl::StatusOr<TokenizeResult> TokenizeHuggingFace(const TokenizeJob& job,
                                                   const std::string& tokenizer) {
  SpawnOptions options;
  options.argv = {
      "/usr/bin/env", "python3",
      "-c",           kScript,
      tokenizer,      absl::StrCat(job.validation_output.empty() ? 0 : job.validation_fraction),
      job.separator,  job.field};
  options.argv.insert(options.argv.end(), job.inputs.begin(), job.inputs.end());
  options.out = Redirect::Pipe();
  options.err = Redirect::Pipe();
  options.own_process_group = false;
  // Whatever ends it, the files that are half written go.
  std::mutex mutex;
  std::optional<Subprocess> python;
  InterruptGuard guard([&] {
    const std::lock_guard lock(mutex);
    if (python) python->Signal(SIGKILL).IgnoreError();
  });
  MP_ASSIGN_OR_RETURN(Subprocess started, Subprocess::Spawn(std::move(options)));
  {
    const std::lock_guard lock(mutex);
    python = std::move(started);
    if (guard.interrupted()) python->Signal(SIGKILL).IgnoreError();
  }
  FrameReader reader(python->TakeOut());
  UniqueFd err = python->TakeErr();
  auto copied = CopyFrames(job, &reader);
  if (!copied.ok() && !absl::IsUnavailable(copied.status())) return copied.status();
  MP_ASSIGN_OR_RETURN(const ExitResult end, python->Wait());
  if (guard.interrupted()) return absl::CancelledError("interrupted: nothing was written");
  if (!end.success()) return Explain(end, std::move(err));
  if (!copied.ok()) return copied.status();
  return Finish(*std::move(copied));
}

}  // namespace milepost::client
