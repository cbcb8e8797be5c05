#include <poll.h>
#include <signal.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/cli/interrupt.h"
#include "client/cli/tokenize.h"
#include "common/status_macros.h"
#include "common/subprocess.h"
#include "engine/data/npy.h"

namespace milepost::client {
namespace {

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
  std::string message(4096, '\0');
  message.resize(FrameReader(std::move(err)).Read(message.data(), message.size())
                     ? message.size()
                     : strnlen(message.data(), message.size()));
  if (end.signal == 0 && end.exit_code == 3) {
    const char* what = message == "transformers" ? "a chat template"
                       : message == "pyarrow"    ? "a Parquet or Arrow file"
                                                 : "a tokenizer.json";
    return absl::FailedPreconditionError(
        absl::StrCat(what, " needs the Python package `", message, "`: pip install ", message,
                     " (in the environment of the python3 on PATH)",
                     message == "tokenizers" ? ", or use --tokenizer bytes" : ""));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("tokenizing failed (", end.ToString(), "): ", message));
}

absl::Status EndsEarly() { return absl::UnavailableError("the tokenizer's output ends early"); }

// The files of the training or the validation part; null: there is none.
struct PartWriters {
  std::unique_ptr<data::NpyWriter> tokens;
  std::unique_ptr<data::NpyWriter> mask;

  absl::Status Finish() {
    if (tokens != nullptr) MP_RETURN_IF_ERROR(tokens->Finish());
    return mask == nullptr ? absl::OkStatus() : mask->Finish();
  }
};

absl::StatusOr<PartWriters> CreateWriters(const std::string& output, data::TokenType type,
                                          bool masks) {
  PartWriters writers;
  if (output.empty()) return writers;
  MP_ASSIGN_OR_RETURN(writers.tokens, data::NpyWriter::Create(output, type));
  if (masks) {
    MP_ASSIGN_OR_RETURN(writers.mask,
                        data::NpyWriter::Create(MaskPath(output), data::TokenType::kUint8));
  }
  return writers;
}

struct Copied {
  PartWriters parts[2];
  TokenizeResult result;
};

absl::StatusOr<Copied> ReadHeader(const TokenizeJob& job, FrameReader* reader) {
  constexpr uint32_t kLongestName = 4096;
  constexpr uint32_t kNone = 0xffffffff;
  uint64_t vocabulary = 0;
  uint8_t masks = 0;
  uint32_t separator = 0, length = 0;
  const bool all = reader->Read(&vocabulary, sizeof vocabulary) && reader->Read(&masks, 1) &&
                   reader->Read(&separator, sizeof separator) &&
                   reader->Read(&length, sizeof length);
  if (!all || length > kLongestName) return EndsEarly();
  Copied copied;
  copied.result.separator.resize(length);
  if (!reader->Read(copied.result.separator.data(), length)) return EndsEarly();
  const data::TokenType type =
      vocabulary <= 65536 ? data::TokenType::kUint16 : data::TokenType::kUint32;
  copied.result.separator_id = separator == kNone ? -1 : separator;
  copied.result.masks = masks != 0;
  copied.result.pairs = masks == 2;
  copied.result.vocabulary = static_cast<int64_t>(vocabulary);
  copied.result.dtype = data::Name(type);
  MP_ASSIGN_OR_RETURN(copied.parts[0], CreateWriters(job.output, type, copied.result.masks));
  MP_ASSIGN_OR_RETURN(copied.parts[1],
                      CreateWriters(job.validation_output, type, copied.result.masks));
  return copied;
}

// A frame of ids, and their masks.
absl::Status CopyFrame(uint32_t count, FrameReader* reader, PartWriters* part) {
  std::vector<uint32_t> ids(count);
  if (!reader->Read(ids.data(), count * sizeof(uint32_t))) return EndsEarly();
  MP_RETURN_IF_ERROR(part->tokens->Append(ids));
  if (part->mask == nullptr) return absl::OkStatus();
  std::vector<uint8_t> mask(count);
  if (!reader->Read(mask.data(), count)) return EndsEarly();
  return part->mask->Append(std::vector<uint32_t>(mask.begin(), mask.end()));
}

// What follows `documents`, and with it all is there.
absl::Status ReadEnd(uint32_t documents, FrameReader* reader, TokenizeResult* result) {
  uint32_t rest[2];
  if (!reader->Read(rest, sizeof rest)) return EndsEarly();
  result->documents = documents;
  result->cut = rest[0];
  result->left_out = rest[1];
  return absl::OkStatus();
}

// OK is not enough: only the script's end says that all has come.
absl::StatusOr<Copied> CopyFrames(const TokenizeJob& job, FrameReader* reader) {
  MP_ASSIGN_OR_RETURN(Copied copied, ReadHeader(job, reader));
  uint8_t part = 0;
  while (reader->Read(&part, 1)) {
    uint32_t count = 0;
    if (!reader->Read(&count, sizeof count)) return EndsEarly();
    if (part == 2) {
      MP_RETURN_IF_ERROR(ReadEnd(count, reader, &copied.result));
      return copied;
    }
    if (part > 2 || copied.parts[part].tokens == nullptr || count > 65536) {
      return absl::InternalError("the tokenizer's output is damaged");
    }
    MP_RETURN_IF_ERROR(CopyFrame(count, reader, &copied.parts[part]));
  }
  return EndsEarly();
}

absl::StatusOr<TokenizeResult> Finish(Copied copied) {
  TokenizeResult result = std::move(copied.result);
  result.train_tokens = copied.parts[0].tokens->size();
  if (result.train_tokens == 0) {
    return absl::InvalidArgumentError(
        result.left_out > 0 ? "no example has a target: its messages have no answer of the "
                              "assistant, or the answer lies behind --sequence-length"
                            : "the input gave no tokens");
  }
  MP_RETURN_IF_ERROR(copied.parts[0].Finish());
  if (copied.parts[1].tokens == nullptr) return result;
  result.validation_tokens = copied.parts[1].tokens->size();
  if (result.validation_tokens == 0) {
    return absl::InvalidArgumentError(
        "--validation-fraction: nothing is left for validation: the input is too short for it");
  }
  MP_RETURN_IF_ERROR(copied.parts[1].Finish());
  return result;
}

}  // namespace

std::string MaskPath(absl::string_view output) {
  absl::ConsumeSuffix(&output, ".npy");
  return absl::StrCat(output, ".mask.npy");
}

absl::StatusOr<TokenizeResult> TokenizeHuggingFace(const TokenizeJob& job,
                                                   const std::string& tokenizer) {
  SpawnOptions options;
  options.argv = {"/usr/bin/env",
                  "python3",
                  "-c",
                  std::string(TokenizeScript()),
                  tokenizer,
                  absl::StrCat(job.validation_output.empty() ? 0 : job.validation_fraction),
                  job.separator,
                  job.field,
                  absl::StrCat(job.sequence_length),
                  job.all_tokens ? "all" : "completions",
                  job.takes_texts ? "taken" : "refused"};
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
