#include "worker/join/joiner.h"

#include <grpcpp/grpcpp.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/atomic_file.h"
#include "common/error_details.h"
#include "common/regular_file.h"
#include "common/rpc/coordinators.h"
#include "common/rpc/endpoint.h"
#include "common/rpc/status.h"
#include "common/status_macros.h"
#include "milepost/v1/join.grpc.pb.h"

namespace milepost::worker {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kCallTime = absl::Seconds(10);
constexpr absl::Duration kFirstPause = absl::Milliseconds(500);
constexpr absl::Duration kLongestPause = absl::Seconds(30);
// A host that was replaced may have left its connection, or its lease, behind.
constexpr absl::Duration kWaitForConnected = absl::Minutes(3);
constexpr absl::Duration kLookEvery = absl::Minutes(10);
constexpr absl::Duration kTryAgain = absl::Minutes(1);
constexpr absl::Duration kAskRefused = absl::Hours(6);
constexpr absl::Duration kSayAgain = absl::Hours(6);
constexpr absl::Duration kClocksDiffer = absl::Minutes(1);
constexpr size_t kMostPemBytes = 1 << 20;

absl::Status MakeTlsFolder(const std::string& path) {
  std::error_code error;
  const bool made = fs::create_directories(path, error);
  if (!error && (!made || chmod(path.c_str(), 0700) == 0)) return absl::OkStatus();
  return absl::ErrnoToStatus(error ? error.value() : errno, absl::StrCat("cannot make ", path));
}

// Of two processes that begin at once both get the same.
absl::StatusOr<std::string> KeyOf(const TlsFolder& folder) {
  auto key = ReadRegularFile(folder.key(), kMostPemBytes);
  if (!absl::IsNotFound(key.status())) return key;
  MP_ASSIGN_OR_RETURN(const std::string made, MakePrivateKey());
  const absl::Status created = CreateFileAtOnce(folder.key(), made, kSecretMode);
  if (!created.ok() && !absl::IsAlreadyExists(created)) return created;
  return ReadRegularFile(folder.key(), kMostPemBytes);
}

// Whom to trust while joining: kept apart, as the folder's own may be newer than the token.
absl::StatusOr<std::string> AuthorityToJoinWith(const JoinOptions& options, const TlsFolder& folder,
                                                const JoinToken& token) {
  if (!options.authority.empty()) {
    MP_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(options.authority, kMostPemBytes));
    MP_RETURN_IF_ERROR(Annotate(ReadCertificate(text).status(),
                                absl::StrCat("--join-authority: ", options.authority)));
    return options.authority;
  }
  if (token.authority.empty()) {
    if (fs::exists(folder.authority())) return folder.authority();
    return absl::InvalidArgumentError(absl::StrCat(
        "the join token comes without the authority's certificate, which `milepost worker token "
        "create` prints after it: give all of that, or --join-authority, or put the certificate "
        "into ",
        folder.authority()));
  }
  std::string path = absl::StrCat(folder.path, "/join-ca.crt");
  MP_RETURN_IF_ERROR(WriteFileAtOnce(path, token.authority, kPublicMode));
  return path;
}

// The certificate comes last: with it the folder is whole.
absl::Status Keep(const TlsFolder& folder, const v1::WorkerCertificate& made) {
  MP_RETURN_IF_ERROR(WriteFileAtOnce(folder.authority(), made.authority(), kPublicMode));
  return WriteFileAtOnce(folder.certificate(), made.certificate(), kPublicMode);
}

absl::StatusOr<Certificate> CertificateIn(const TlsFolder& folder) {
  MP_RETURN_IF_ERROR(CheckTlsFolder(folder));
  MP_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(folder.certificate(), kMostPemBytes));
  return ReadCertificate(text);
}

template <typename Request>
using JoinCall = grpc::Status (v1::JoinService::Stub::*)(grpc::ClientContext*, const Request&,
                                                         v1::WorkerCertificate*);

// Once; of several coordinators, each until one answers.
template <typename Request>
absl::StatusOr<v1::WorkerCertificate> Ask(const Endpoint& endpoint, JoinCall<Request> method,
                                          const Request& request) {
  CoordinatorChannel coordinator(endpoint);
  const size_t addresses = SplitAddresses(endpoint.address).size();
  absl::Status status;
  for (size_t i = 0; i < addresses; ++i) {
    const auto channel = coordinator.Get();
    const auto stub = v1::JoinService::NewStub(channel);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoSeconds(kCallTime));
    v1::WorkerCertificate made;
    status = FromGrpcStatus((stub.get()->*method)(&context, request, &made));
    if (status.ok()) return made;
    if (!absl::IsUnavailable(status)) return status;
    coordinator.Failed(channel);
  }
  return status;
}

absl::Status JoinOnce(const JoinOptions& options) {
  MP_ASSIGN_OR_RETURN(const JoinToken token, options.token());
  const TlsFolder folder(options.tls_dir);
  MP_RETURN_IF_ERROR(MakeTlsFolder(folder.path));
  MP_ASSIGN_OR_RETURN(const std::string key, KeyOf(folder));
  MP_RETURN_IF_ERROR(CheckPrivateKeyMode(folder.key()));
  MP_ASSIGN_OR_RETURN(const std::string authority, AuthorityToJoinWith(options, folder, token));
  v1::JoinWorkerRequest request;
  request.set_worker_id(options.id);
  auto made = MakeCertificateRequest(options.id, key);
  if (!made.ok()) return Annotate(made.status(), folder.key());
  request.set_certificate_request(*std::move(made));
  MP_ASSIGN_OR_RETURN(auto credentials, UserCredentials(authority, token.secret));
  MP_ASSIGN_OR_RETURN(const v1::WorkerCertificate certificate,
                      Ask(Endpoint(options.coordinator, std::move(credentials)),
                          &v1::JoinService::Stub::JoinWorker, request));
  MP_RETURN_IF_ERROR(Keep(folder, certificate));
  spdlog::info("joined as {}{}; the certificate in {} holds until {}", options.id,
               certificate.pool().empty() ? "" : " in pool " + certificate.pool(), folder.path,
               absl::FormatTime(absl::RFC3339_sec,
                                absl::FromUnixSeconds(certificate.expire_time().seconds()),
                                absl::UTCTimeZone()));
  return absl::OkStatus();
}

bool MayPass(const absl::Status& status) {
  switch (ReasonOf(status)) {
    case v1::ERROR_REASON_RATE_LIMITED:
    case v1::ERROR_REASON_COORDINATOR_BUSY:
    case v1::ERROR_REASON_DISK_FULL:
    case v1::ERROR_REASON_TOO_MANY_JOINED:
      return true;
    default:
      return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
             absl::IsCancelled(status);  // cut off by a coordinator that stops
  }
}

// gRPC's words for it say nothing of what to do.
std::string Remedy(const JoinOptions& options, const absl::Status& status) {
  if (!absl::StrContains(status.message(), "certificate verify failed")) return "";
  return absl::StrCat("; is the join token of the coordinator at ", options.coordinator,
                      ", and does its certificate have that name (init-pki --host)?");
}

// Whether the token comes with an authority that the folder does not know and that began no earlier
// than the folder's: the coordinator's authority was made anew, and the certificate is of a
// coordinator that is no more. One that began earlier has been replaced since the token was made.
bool TokenIsOfANewerAuthority(const JoinOptions& options, const TlsFolder& folder) {
  if (!options.token) return false;
  const auto token = options.token();
  const auto known = ReadRegularFile(folder.authority(), kMostPemBytes);
  if (!token.ok() || token->authority.empty() || !known.ok()) return false;
  if (HasCertificate(*known, token->authority).value_or(true)) return false;
  const auto of_folder = ReadCertificate(*known);
  const auto of_token = ReadCertificate(token->authority);
  return of_folder.ok() && of_token.ok() && of_token->not_before >= of_folder->not_before;
}

double RandomSpread() {
  std::random_device device;
  return std::uniform_real_distribution<double>(0, 1)(device);
}

// Again and again where that may help.
absl::Status Join(const JoinOptions& options, const Pause& pause) {
  std::string said;
  absl::Duration connected_for;
  for (absl::Duration wait = kFirstPause;; wait = std::min(wait * 2, kLongestPause)) {
    const absl::Status status = JoinOnce(options);
    if (status.ok()) return status;
    const bool connected = ReasonOf(status) == v1::ERROR_REASON_WORKER_CONNECTED;
    if (!MayPass(status) && !(connected && connected_for < kWaitForConnected)) {
      return Annotate(status, absl::StrCat("cannot join as ", options.id));
    }
    if (connected) connected_for += wait;
    if (said != status.message()) {
      said = std::string(status.message());
      spdlog::warn("cannot join as {} yet: {}{}; trying again", options.id, said,
                   Remedy(options, status));
    }
    if (!pause(wait * (0.5 + RandomSpread() / 2)))
      return absl::CancelledError("told to stop before it had joined");
  }
}

}  // namespace

absl::Time RenewTime(const Certificate& certificate, double spread) {
  const absl::Duration life = certificate.not_after - certificate.not_before;
  return certificate.not_before + life / 2 - life * (spread / 10);
}

absl::Status JoinIfNeeded(const JoinOptions& options, const Pause& pause) {
  const TlsFolder folder(options.tls_dir);
  const auto there = CertificateIn(folder);
  if (there.ok() && there->not_after > absl::Now() + kClocksDiffer) {
    const bool by_hand = there->pool.empty();
    if (by_hand || !TokenIsOfANewerAuthority(options, folder)) return absl::OkStatus();
    spdlog::info("the join token is of a newer authority than the certificate in {}: joining anew",
                 folder.path);
    const absl::Status joined = Join(options, pause);
    if (joined.ok() || absl::IsCancelled(joined)) return joined;
    spdlog::warn("{}; going on with the certificate that is there", std::string(joined.message()));
    return absl::OkStatus();
  }
  if (!options.token) return there.ok() ? absl::OkStatus() : there.status();
  return Join(options, pause);
}

CertificateRenewer::CertificateRenewer(JoinOptions options)
    : options_(std::move(options)), spread_(RandomSpread()), thread_([this] { Run(); }) {}

CertificateRenewer::~CertificateRenewer() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  thread_.join();
}

void CertificateRenewer::Run() {
  while (Sleep(Look())) continue;
}

bool CertificateRenewer::Sleep(absl::Duration duration) {
  absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(&stop_), duration);
  return !stop_;
}

absl::Duration CertificateRenewer::Look() {
  const auto certificate = CertificateIn(TlsFolder(options_.tls_dir));
  if (!certificate.ok()) return kLookEvery;          // TlsWatch says what is wrong
  if (certificate->pool.empty()) return kLookEvery;  // it did not come of a join token
  const absl::Time now = absl::Now();
  const absl::Time due = RenewTime(*certificate, spread_);
  if (now < due) return std::min(due - now, kLookEvery);
  const bool over = certificate->not_after <= now;
  const absl::Status status = over && options_.token ? JoinOnce(options_) : Renew();
  if (status.ok()) {
    said_.clear();
    return kTryAgain;  // whatever this host's clock makes of the new one
  }
  if (said_ != status.message() || now >= say_again_) {
    said_ = std::string(status.message());
    say_again_ = now + kSayAgain;
    spdlog::warn(
        "the certificate in {}, which holds until {}, is not renewed: {}", options_.tls_dir,
        absl::FormatTime(absl::RFC3339_sec, certificate->not_after, absl::UTCTimeZone()), said_);
  }
  // Each is in the coordinator's audit log.
  const bool refused = absl::IsPermissionDenied(status) || absl::IsFailedPrecondition(status) ||
                       absl::IsUnimplemented(status);
  return refused ? kAskRefused : kTryAgain;
}

absl::Status CertificateRenewer::Renew() {
  const TlsFolder folder(options_.tls_dir);
  MP_ASSIGN_OR_RETURN(const TlsFiles files, ReadTlsFolder(folder));
  v1::RenewWorkerCertificateRequest request;
  MP_ASSIGN_OR_RETURN(*request.mutable_certificate_request(),
                      MakeCertificateRequest(options_.id, files.key));
  MP_ASSIGN_OR_RETURN(auto credentials, WorkerCredentials(folder.path));
  MP_ASSIGN_OR_RETURN(const v1::WorkerCertificate certificate,
                      Ask(Endpoint(options_.coordinator, std::move(credentials)),
                          &v1::JoinService::Stub::RenewWorkerCertificate, request));
  MP_RETURN_IF_ERROR(Keep(folder, certificate));
  spdlog::info("the certificate in {} is renewed until {}", folder.path,
               absl::FormatTime(absl::RFC3339_sec,
                                absl::FromUnixSeconds(certificate.expire_time().seconds()),
                                absl::UTCTimeZone()));
  return absl::OkStatus();
}

}  // namespace milepost::worker
