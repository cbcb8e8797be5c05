#include "coordinator/security/init_pki.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/atomic_file.h"
#include "common/pki/certificate.h"
#include "common/regular_file.h"
#include "common/rpc/endpoint.h"
#include "common/status_macros.h"
#include "common/worker_id.h"
#include "coordinator/security/token_text.h"

namespace milepost::coordinator {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kAuthorityLifetime = absl::Hours(24 * 3650);
constexpr size_t kMaxFileBytes = 1 << 20;

absl::Status MakeFolder(const std::string& path) {
  std::error_code error;
  // One that is there keeps its owner's choice.
  const bool made = fs::create_directories(path, error);
  if (!error && (!made || chmod(path.c_str(), 0700) == 0)) return absl::OkStatus();
  return absl::ErrnoToStatus(error ? error.value() : errno, absl::StrCat("cannot make ", path));
}

// Empty: there is no such file.
absl::StatusOr<std::string> ReadFile(const std::string& path) {
  auto text = ReadRegularFile(path, kMaxFileBytes);
  if (absl::IsNotFound(text.status())) return "";
  return text;
}

absl::StatusOr<std::string> KeyIn(const std::string& path) {
  MP_ASSIGN_OR_RETURN(std::string key, ReadFile(path));
  if (!key.empty()) return key;
  MP_ASSIGN_OR_RETURN(key, MakePrivateKey());
  MP_RETURN_IF_ERROR(WriteFileAtOnce(path, key, kSecretMode));
  return key;
}

class Maker {
 public:
  Maker(const PkiRequest& request, absl::Time now) : request_(request), now_(now) {}

  absl::StatusOr<std::vector<std::string>> Run() {
    for (const std::string& id : request_.workers)
      MP_RETURN_IF_ERROR(Annotate(CheckWorkerId(id), "--worker"));
    MP_RETURN_IF_ERROR(MakeFolder(request_.dir));
    MP_RETURN_IF_ERROR(FindAuthority());
    MP_RETURN_IF_ERROR(IssueCoordinator());
    if (!request_.workers.empty()) MP_RETURN_IF_ERROR(MakeFolder(Path("workers")));
    for (const std::string& id : request_.workers) {
      MP_RETURN_IF_ERROR(
          Issue(absl::StrCat("workers/", id), {.name = id, .hosts = {}, .uri = WorkerUri(id)}));
    }
    MP_RETURN_IF_ERROR(MakeAdmin());
    return std::move(made_);
  }

 private:
  std::string Path(const std::string& name) const { return absl::StrCat(request_.dir, "/", name); }

  absl::Status FindAuthority() {
    MP_RETURN_IF_ERROR(MakeFolder(Path("ca")));
    MP_ASSIGN_OR_RETURN(authority_.certificate, ReadFile(Path("ca/ca.crt")));
    MP_ASSIGN_OR_RETURN(authority_.key, ReadFile(Path("ca/ca.key")));
    if (!authority_.certificate.empty() && !authority_.key.empty()) return absl::OkStatus();
    if (!authority_.certificate.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat(Path("ca/ca.key"),
                       " is missing: bring it back, or begin with a new folder "
                       "and give every process its new files"));
    }
    MP_ASSIGN_OR_RETURN(const std::string key, KeyIn(Path("ca/ca.key")));
    MP_ASSIGN_OR_RETURN(authority_,
                        MakeAuthority("milepost authority", key, now_, kAuthorityLifetime));
    MP_RETURN_IF_ERROR(WriteFileAtOnce(Path("ca/ca.crt"), authority_.certificate, kPublicMode));
    made_.push_back(absl::StrCat(Path("ca"), ": the authority; its key signs whoever is let in"));
    return absl::OkStatus();
  }

  absl::Status IssueCoordinator() {
    std::vector<std::string> hosts = request_.hosts;
    MP_ASSIGN_OR_RETURN(const std::string known,
                        ReadFile(TlsFolder(Path("coordinator")).certificate()));
    Certificate before;
    if (!known.empty()) {
      auto read = ReadCertificate(known);
      // A damaged one is made anew, where its names are not needed.
      if (!read.ok() && hosts.empty()) return read.status();
      if (read.ok()) before = *std::move(read);
    }
    if (hosts.empty()) hosts = before.hosts;
    const auto has = [&](const std::string& host) {
      return std::find(hosts.begin(), hosts.end(), host) != hosts.end();
    };
    for (const char* own : {"localhost", "127.0.0.1"}) {
      if (!has(own)) hosts.push_back(own);
    }
    MP_RETURN_IF_ERROR(
        Issue("coordinator", {.name = "milepost-coordinator", .hosts = hosts, .uri = ""}));
    std::vector<std::string> lost;
    for (const std::string& host : before.hosts) {
      if (!has(host)) lost.push_back(host);
    }
    if (!lost.empty()) {
      made_.push_back(
          absl::StrCat(Path("coordinator"), ": no longer as ", absl::StrJoin(lost, ", "),
                       "; who knows the coordinator by such a name is refused: name all "
                       "with --host, or none to keep those of before"));
    }
    return absl::OkStatus();
  }

  absl::Status Issue(const std::string& name, const Certificate& wanted) {
    const TlsFolder folder(Path(name));
    MP_RETURN_IF_ERROR(MakeFolder(folder.path));
    MP_ASSIGN_OR_RETURN(const std::string key, KeyIn(folder.key()));
    MP_ASSIGN_OR_RETURN(const std::string certificate,
                        IssueCertificate(authority_, wanted, key, now_, request_.lifetime));
    MP_RETURN_IF_ERROR(WriteFileAtOnce(folder.authority(), authority_.certificate, kPublicMode));
    MP_RETURN_IF_ERROR(WriteFileAtOnce(folder.certificate(), certificate, kPublicMode));
    made_.push_back(
        absl::StrCat(folder.path, ": until ",
                     absl::FormatTime("%Y-%m-%d", now_ + request_.lifetime, absl::UTCTimeZone()),
                     wanted.hosts.empty() ? "" : ", as " + absl::StrJoin(wanted.hosts, ", ")));
    return absl::OkStatus();
  }

  absl::Status MakeAdmin() {
    MP_RETURN_IF_ERROR(MakeFolder(Path("client")));
    MP_RETURN_IF_ERROR(WriteFileAtOnce(Path("client/ca.crt"), authority_.certificate, kPublicMode));
    const std::string digest = absl::StrCat(Path("coordinator/"), kAdminTokenFile);
    if (fs::exists(digest)) return absl::OkStatus();
    const NewToken token = MakeToken();
    MP_RETURN_IF_ERROR(WriteFileAtOnce(Path("client/admin-token"), token.text + "\n", kSecretMode));
    MP_RETURN_IF_ERROR(WriteFileAtOnce(digest, TokenDigestLine(token), kSecretMode));
    made_.push_back(absl::StrCat(Path("client"),
                                 ": the first admin token: milepost auth login "
                                 "--coordinator HOST:PORT --ca ",
                                 Path("client/ca.crt"), " --token-file ",
                                 Path("client/admin-token")));
    return absl::OkStatus();
  }

  const PkiRequest& request_;
  const absl::Time now_;
  KeyPair authority_;
  std::vector<std::string> made_;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> InitPki(const PkiRequest& request, absl::Time now) {
  return Maker(request, now).Run();
}

}  // namespace milepost::coordinator
