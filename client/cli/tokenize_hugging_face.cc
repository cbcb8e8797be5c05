#include <poll.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/tokenize.h"
#include "common/status_macros.h"
#include "common/subprocess.h"
#include "engine/data/npy.h"

namespace milepost::client {
namespace {

// Reads the files and writes to stdout: the vocabulary's size (u64), then frames of one byte (0:
// training, 1: validation), a count (u32) and that many ids (u32), all little-endian. Text goes
// through the tokenizer in pieces of about 1 MiB that end at line breaks. Exit code 3: the package
// is missing; 4: a message for the user is on stderr.
constexpr char kScript[] = R"py(
import struct, sys
try:
    from tokenizers import Tokenizer
except ImportError:
    sys.exit(3)
def fail(message):
    sys.stderr.write(message + "\n")
    sys.exit(4)
tokenizer_path, fraction, paths = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
try:
    tokenizer = Tokenizer.from_file(tokenizer_path)
except Exception as error:
    fail(f"{tokenizer_path}: not a tokenizer.json: {error}")
out = sys.stdout.buffer
out.write(struct.pack("<Q", tokenizer.get_vocab_size()))
def text_pieces(path):
    with open(path, encoding="utf-8", newline="") as file:
        while piece := file.readlines(1 << 20):
            yield "".join(piece)
def emit(part, text):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    for i in range(0, len(ids), 65536):
        some = ids[i:i + 65536]
        out.write(struct.pack(f"<BI{len(some)}I", part, len(some), *some))
try:
    import os
    split = sum(os.path.getsize(path) for path in paths) * (1 - fraction)
    seen = 0
    for path in paths:
        for text in text_pieces(path):
            size = len(text.encode())
            if fraction == 0 or seen + size <= split:
                emit(0, text)
            elif seen >= split:
                emit(1, text)
            else:
                lines = text.splitlines(keepends=True)
                kept, size_kept = 0, 0
                while kept < len(lines) and seen + size_kept < split:
                    size_kept += len(lines[kept].encode())
                    kept += 1
                emit(0, "".join(lines[:kept]))
                emit(1, "".join(lines[kept:]))
            seen += size
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

absl::StatusOr<TokenizeResult> CopyFrames(const TokenizeJob& job, FrameReader* reader) {
  uint64_t vocabulary = 0;
  if (!reader->Read(&vocabulary, sizeof vocabulary)) return absl::UnavailableError("no output");
  const data::TokenType type =
      vocabulary <= 65536 ? data::TokenType::kUint16 : data::TokenType::kUint32;
  std::unique_ptr<data::NpyWriter> writers[2];
  MP_ASSIGN_OR_RETURN(writers[0], data::NpyWriter::Create(job.output, type));
  if (!job.validation_output.empty()) {
    MP_ASSIGN_OR_RETURN(writers[1], data::NpyWriter::Create(job.validation_output, type));
  }
  uint8_t part = 0;
  std::vector<uint32_t> ids;
  while (reader->Read(&part, 1)) {
    uint32_t count = 0;
    if (part > 1 || !writers[part] || !reader->Read(&count, sizeof count) || count > 65536) {
      return absl::InternalError("the tokenizer's output is damaged");
    }
    ids.resize(count);
    if (!reader->Read(ids.data(), count * sizeof(uint32_t))) {
      return absl::UnavailableError("the tokenizer's output ends early");
    }
    MP_RETURN_IF_ERROR(writers[part]->Append(ids));
  }
  TokenizeResult result = {writers[0]->size(), writers[1] ? writers[1]->size() : 0,
                           static_cast<int64_t>(vocabulary), data::Name(type)};
  if (result.train_tokens == 0) return absl::InvalidArgumentError("the input gave no tokens");
  MP_RETURN_IF_ERROR(writers[0]->Finish());
  if (writers[1]) MP_RETURN_IF_ERROR(writers[1]->Finish());
  return result;
}

}  // namespace

absl::StatusOr<TokenizeResult> TokenizeHuggingFace(const TokenizeJob& job,
                                                   const std::string& tokenizer) {
  SpawnOptions options;
  options.argv = {
      "/usr/bin/env", "python3",
      "-c",           kScript,
      tokenizer,      absl::StrCat(job.validation_output.empty() ? 0 : job.validation_fraction)};
  options.argv.insert(options.argv.end(), job.inputs.begin(), job.inputs.end());
  options.out = Redirect::Pipe();
  options.err = Redirect::Pipe();
  options.own_process_group = false;
  MP_ASSIGN_OR_RETURN(Subprocess python, Subprocess::Spawn(std::move(options)));
  FrameReader reader(python.TakeOut());
  UniqueFd err = python.TakeErr();
  auto result = CopyFrames(job, &reader);
  if (!result.ok() && !absl::IsUnavailable(result.status())) return result;
  MP_ASSIGN_OR_RETURN(const ExitResult end, python.Wait());
  if (!end.success()) return Explain(end, std::move(err));
  return result;
}

}  // namespace milepost::client
