#include "worker/script/files_fetch.h"

#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/files/unpack.h"
#include "common/rpc/coordinators.h"
#include "common/rpc/status.h"
#include "common/status_macros.h"
#include "common/steady_time.h"
#include "milepost/v1/files.grpc.pb.h"
#include "worker/script/files_cache.h"

namespace milepost::worker {
namespace {

constexpr absl::Duration kFirstFetchPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestFetchPause = absl::Seconds(1);
constexpr mode_t kOwnFolder = 0700;

// Not a rank's own doing, and not its memory either.
absl::Status OfThisHost(const absl::Status& status) {
  return status.ok() ? status : absl::InternalError(status.message());
}

class Fetcher {
 public:
  Fetcher(const v1::StartRank& start, const FetchOptions& options)
      : start_(start), options_(options), coordinators_(options.coordinator) {}

  absl::Status Fetch(int file) {
    const absl::Time deadline = SteadyNow() + options_.patience;
    for (absl::Duration pause = kFirstFetchPause;;
         pause = std::min(2 * pause, kLongestFetchPause)) {
      if (options_.give_up()) return absl::CancelledError("told to stop while files were fetched");
      const std::shared_ptr<grpc::Channel> channel = coordinators_.Get();
      const absl::Status status = FetchOnce(channel, file, deadline);
      const bool away = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
      const bool busy = absl::IsResourceExhausted(status) || absl::IsCancelled(status);
      if (!away && !busy) return status;
      if (SteadyNow() >= deadline) {
        return absl::UnavailableError(
            absl::StrCat("script.files: they could not be fetched within ",
                         absl::FormatDuration(options_.patience), ": ", status.message()));
      }
      if (away) coordinators_.Failed(channel);
      coordinators_.Pause(pause);
    }
  }

 private:
  absl::Status FetchOnce(const std::shared_ptr<grpc::Channel>& channel, int file,
                         absl::Time deadline) {
    if (ftruncate(file, 0) != 0 || lseek(file, 0, SEEK_SET) != 0) {
      return OfThisHost(absl::ErrnoToStatus(errno, "the cache of files"));
    }
    grpc::ClientContext context;
    context.set_deadline(
        std::chrono::system_clock::now() +
        absl::ToChronoNanoseconds(std::max(deadline - SteadyNow(), kFirstFetchPause)));
    v1::ReadFilesRequest request;
    request.set_job(start_.job());
    request.set_generation(start_.generation());
    const auto stream = v1::FilesService::NewStub(channel)->ReadFiles(&context, request);
    v1::FilesPart part;
    absl::Status status;
    for (int64_t got = 0; status.ok() && stream->Read(&part);) {
      got += static_cast<int64_t>(part.data().size());
      status = got > start_.spec().script().sent_files().bytes()
                   ? absl::DataLossError("script.files: more came than was sent along")
                   : Append(part.data(), file);
      if (status.ok() && options_.give_up()) status = absl::CancelledError("told to stop");
    }
    if (!status.ok()) context.TryCancel();
    const absl::Status end = FromGrpcStatus(stream->Finish());
    return status.ok() ? end : status;
  }

  static absl::Status Append(absl::string_view piece, int file) {
    while (!piece.empty()) {
      const ssize_t put = write(file, piece.data(), piece.size());
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) return OfThisHost(absl::ErrnoToStatus(errno, "the cache of files"));
      piece.remove_prefix(static_cast<size_t>(put));
    }
    return absl::OkStatus();
  }

  const v1::StartRank& start_;
  const FetchOptions& options_;
  CoordinatorChannel coordinators_;
};

absl::StatusOr<UniqueFd> Archive(const v1::StartRank& start, const FetchOptions& options) {
  const std::string path = FilesCachePath(options.temporary_files);
  auto cache = FilesCache::Open(path);
  if (!cache.ok()) return OfThisHost(cache.status());
  Fetcher fetcher(start, options);
  auto archive = cache->Get(
      start.spec().script().sent_files(), [&](int file) { return fetcher.Fetch(file); },
      options.give_up);
  if (absl::IsDataLoss(archive.status())) {
    return absl::FailedPreconditionError(archive.status().message());
  }
  if (absl::IsResourceExhausted(archive.status()) || absl::IsPermissionDenied(archive.status())) {
    return OfThisHost(archive.status());
  }
  return archive;
}

}  // namespace

absl::Status BringFiles(const v1::StartRank& start, const FetchOptions& options,
                        const std::string& folder) {
  const absl::Time began = SteadyNow();
  MP_ASSIGN_OR_RETURN(const UniqueFd archive, Archive(start, options));
  if (mkdir(folder.c_str(), kOwnFolder) != 0) {
    return OfThisHost(absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", folder)));
  }
  const absl::Status unpacked = UnpackFiles(archive.get(), folder);
  if (absl::IsInvalidArgument(unpacked)) return Annotate(unpacked, "script.files");
  MP_RETURN_IF_ERROR(OfThisHost(unpacked));
  spdlog::debug("the files that were sent along are in {} ({})", folder,
                absl::FormatDuration(absl::Trunc(SteadyNow() - began, absl::Milliseconds(1))));
  return absl::OkStatus();
}

}  // namespace milepost::worker
