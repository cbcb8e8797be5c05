#include "coordinator/security/worker_authority.h"

#include "absl/strings/str_cat.h"
#include "common/proto_time.h"
#include "common/regular_file.h"
#include "common/rpc/endpoint.h"
#include "common/status_macros.h"

namespace milepost::coordinator {
namespace {

constexpr size_t kMostAuthorityBytes = 1 << 20;
constexpr char kFlag[] = "--worker-authority";

}  // namespace

absl::StatusOr<WorkerAuthority> WorkerAuthority::Open(WorkerAuthorityOptions options) {
  WorkerAuthority authority(std::move(options));
  MP_RETURN_IF_ERROR(authority.Read().status());
  return authority;
}

absl::StatusOr<KeyPair> WorkerAuthority::Read() const {
  const std::string certificate = absl::StrCat(options_.dir, "/ca.crt");
  const std::string key = absl::StrCat(options_.dir, "/ca.key");
  KeyPair keys;
  for (const auto& [path, text] : {std::pair(certificate, &keys.certificate), {key, &keys.key}}) {
    auto read = ReadRegularFile(path, kMostAuthorityBytes);
    if (!read.ok()) return Annotate(read.status(), kFlag);
    *text = *std::move(read);
  }
  MP_RETURN_IF_ERROR(Annotate(CheckPrivateKeyMode(key), kFlag));
  MP_RETURN_IF_ERROR(Annotate(CheckKeyIsOf(keys.certificate, keys.key),
                              absl::StrCat(kFlag, ": ", certificate, " and ", key)));
  MP_RETURN_IF_ERROR(CheckTrusted(keys.certificate, certificate));
  return keys;
}

absl::Status WorkerAuthority::CheckTrusted(const std::string& certificate,
                                           const std::string& path) const {
  MP_ASSIGN_OR_RETURN(const std::string trusted, Trusted());
  const std::string trusting = TlsFolder(options_.tls_dir).authority();
  const auto known = HasCertificate(trusted, certificate);
  if (!known.ok()) return Annotate(known.status(), trusting);
  if (*known) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(kFlag, ": the coordinator trusts nothing that ",
                                                    path, " signs: append it to ", trusting));
}

absl::StatusOr<v1::WorkerCertificate> WorkerAuthority::Issue(const KeyPair& keys,
                                                             const std::string& worker_id,
                                                             const std::string& pool,
                                                             const std::string& request,
                                                             absl::Time now) const {
  v1::WorkerCertificate made;
  const Certificate wanted = {
      .name = worker_id, .hosts = {}, .uri = WorkerUri(worker_id), .pool = pool};
  MP_ASSIGN_OR_RETURN(*made.mutable_certificate(),
                      IssueForRequest(keys, wanted, request, now, options_.lifetime));
  MP_ASSIGN_OR_RETURN(*made.mutable_authority(), Trusted());
  made.set_pool(pool);
  *made.mutable_expire_time() = ToProto(now + options_.lifetime);
  return made;
}

absl::StatusOr<std::string> WorkerAuthority::Trusted() const {
  return ReadRegularFile(TlsFolder(options_.tls_dir).authority(), kMostAuthorityBytes);
}

}  // namespace milepost::coordinator
