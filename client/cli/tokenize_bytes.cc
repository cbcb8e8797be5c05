#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <memory>

#include "absl/strings/str_cat.h"
#include "client/cli/interrupt.h"
#include "client/cli/tokenize.h"
#include "client/cli/utf8.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"
#include "engine/data/npy.h"

namespace milepost::client {
namespace {

constexpr size_t kChunk = 1 << 20;

absl::StatusOr<UniqueFd> OpenText(const std::string& path, int64_t* size) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info;
  if (!fd.ok() || fstat(fd.get(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  *size = info.st_size;
  return fd;
}

// Sends bytes to the training file and, past `split` bytes, from the next line on, to the other.
class SplitWriter {
 public:
  static absl::StatusOr<SplitWriter> Create(const TokenizeJob& job, int64_t split) {
    SplitWriter writer;
    MP_ASSIGN_OR_RETURN(writer.train_,
                        data::NpyWriter::Create(job.output, data::TokenType::kUint8));
    writer.split_ = split;
    if (job.validation_output.empty()) return writer;
    MP_ASSIGN_OR_RETURN(writer.validation_,
                        data::NpyWriter::Create(job.validation_output, data::TokenType::kUint8));
    return writer;
  }

  absl::Status Append(absl::string_view text) {
    if (validation_ && !switched_ && train_->size() + ssize(text) > split_) {
      const size_t from = std::max<int64_t>(0, split_ - train_->size());
      const size_t newline = text.find('\n', from);
      if (newline != absl::string_view::npos) {
        MP_RETURN_IF_ERROR(Append(train_.get(), text.substr(0, newline + 1)));
        switched_ = true;
        text.remove_prefix(newline + 1);
      }
    }
    return Append(switched_ ? validation_.get() : train_.get(), text);
  }

  absl::StatusOr<TokenizeResult> Finish() {
    TokenizeResult result = {train_->size(), validation_ ? validation_->size() : 0, 256, "uint8"};
    if (validation_ && result.validation_tokens == 0) {
      return absl::InvalidArgumentError(
          "the validation part is empty: raise --validation-fraction, or give text with line "
          "breaks");
    }
    MP_RETURN_IF_ERROR(train_->Finish());
    if (validation_) MP_RETURN_IF_ERROR(validation_->Finish());
    return result;
  }

 private:
  static int64_t ssize(absl::string_view text) { return static_cast<int64_t>(text.size()); }

  absl::Status Append(data::NpyWriter* writer, absl::string_view text) {
    tokens_.assign(reinterpret_cast<const unsigned char*>(text.data()),
                   reinterpret_cast<const unsigned char*>(text.data()) + text.size());
    return writer->Append(tokens_);
  }

  std::unique_ptr<data::NpyWriter> train_;
  std::unique_ptr<data::NpyWriter> validation_;
  int64_t split_ = 0;
  bool switched_ = false;
  std::vector<uint32_t> tokens_;
};

absl::Status AppendFile(const std::string& path, int fd, const InterruptGuard& guard,
                        SplitWriter* writer) {
  Utf8Checker checker;
  std::string chunk(kChunk, '\0');
  const auto not_text = [&] {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": not UTF-8 at byte ", checker.bad_offset(), " (line ", checker.bad_line(), ")"));
  };
  while (true) {
    if (guard.interrupted()) return absl::CancelledError("interrupted: nothing was written");
    const ssize_t got = read(fd, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
    if (got == 0) break;
    const absl::string_view text(chunk.data(), got);
    if (!checker.Feed(text)) return not_text();
    MP_RETURN_IF_ERROR(writer->Append(text));
  }
  return checker.Finish() ? absl::OkStatus() : not_text();
}

}  // namespace

absl::StatusOr<TokenizeResult> TokenizeBytes(const TokenizeJob& job) {
  std::vector<UniqueFd> files;
  int64_t total = 0;
  for (const std::string& path : job.inputs) {
    int64_t size = 0;
    MP_ASSIGN_OR_RETURN(UniqueFd file, OpenText(path, &size));
    files.push_back(std::move(file));
    total += size;
  }
  const InterruptGuard guard([] {});
  if (total == 0) return absl::InvalidArgumentError("the input is empty");
  const auto split = static_cast<int64_t>(total * (1 - job.validation_fraction));
  MP_ASSIGN_OR_RETURN(SplitWriter writer, SplitWriter::Create(job, split));
  for (size_t i = 0; i < files.size(); ++i) {
    MP_RETURN_IF_ERROR(AppendFile(job.inputs[i], files[i].get(), guard, &writer));
  }
  return writer.Finish();
}

}  // namespace milepost::client
