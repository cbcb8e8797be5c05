#include "coordinator/security/init_pki.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/pki/certificate.h"
#include "common/regular_file.h"
#include "common/rpc/endpoint.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"
#include "coordinator/security/token_text.h"

namespace milepost::coordinator {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kAuthorityLifetime = absl::Hours(24 * 3650);
constexpr mode_t kSecret = 0600;
constexpr mode_t kPublic = 0644;
constexpr size_t kMaxWorkerIdBytes = 63;
constexpr size_t kMaxFileBytes = 1 << 20;

absl::Status MakeFolder(const std::string& path) {
  std::error_code error;
  // One that is there keeps its owner's choice.
  const bool made = fs::create_directories(path, error);
  if (!error && (!made || chmod(path.c_str(), 0700) == 0)) return absl::OkStatus();
  return absl::ErrnoToStatus(error ? error.value() : errno, absl::StrCat("cannot make ", path));
}

// All or nothing, and never readable by others in between.
absl::Status WriteFile(const std::string& path, const std::string& text, mode_t mode) {
  const std::string temporary = absl::StrCat(path, ".tmp.", getpid());
  unlink(temporary.c_str());
  UniqueFd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  const bool written =
      fd.ok() && fchmod(fd.get(), mode) == 0 &&
      write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
      fsync(fd.get()) == 0 && std::rename(temporary.c_str(), path.c_str()) == 0;
  if (written) return absl::OkStatus();
  const absl::Status status = absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  unlink(temporary.c_str());
  return status;
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
  MP_RETURN_IF_ERROR(WriteFile(path, key, kSecret));
  return key;
}

absl::Status CheckWorkerId(const std::string& id) {
  const bool good = std::all_of(id.begin(), id.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  });
  if (good && !id.empty() && id.size() <= kMaxWorkerIdBytes && id[0] != '.') {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("--worker: must be 1 to ", kMaxWorkerIdBytes,
                                                 " letters, digits, '-', '_' and '.', not '",
                                                 id.substr(0, 100), "'"));
}

class Maker {
 public:
  Maker(const PkiRequest& request, absl::Time now) : request_(request), now_(now) {}

  absl::StatusOr<std::vector<std::string>> Run() {
    for (const std::string& id : request_.workers) MP_RETURN_IF_ERROR(CheckWorkerId(id));
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
    MP_RETURN_IF_ERROR(WriteFile(Path("ca/ca.crt"), authority_.certificate, kPublic));
    made_.push_back(absl::StrCat(Path("ca"), ": the authority; its key signs whoever is let in"));
    return absl::OkStatus();
  }

  absl::Status IssueCoordinator() {
    std::vector<std::string> hosts = request_.hosts;
    MP_ASSIGN_OR_RETURN(const std::string known,
                        ReadFile(TlsFolder(Path("coordinator")).certificate()));
    if (hosts.empty() && !known.empty()) {
      MP_ASSIGN_OR_RETURN(const Certificate certificate, ReadCertificate(known));
      hosts = certificate.hosts;
    }
    for (const char* own : {"localhost", "127.0.0.1"}) {
      if (std::find(hosts.begin(), hosts.end(), own) == hosts.end()) hosts.push_back(own);
    }
    return Issue("coordinator", {.name = "milepost-coordinator", .hosts = hosts, .uri = ""});
  }

  absl::Status Issue(const std::string& name, const Certificate& wanted) {
    const TlsFolder folder(Path(name));
    MP_RETURN_IF_ERROR(MakeFolder(folder.path));
    MP_ASSIGN_OR_RETURN(const std::string key, KeyIn(folder.key()));
    MP_ASSIGN_OR_RETURN(const std::string certificate,
                        IssueCertificate(authority_, wanted, key, now_, request_.lifetime));
    MP_RETURN_IF_ERROR(WriteFile(folder.authority(), authority_.certificate, kPublic));
    MP_RETURN_IF_ERROR(WriteFile(folder.certificate(), certificate, kPublic));
    made_.push_back(
        absl::StrCat(folder.path, ": until ",
                     absl::FormatTime("%Y-%m-%d", now_ + request_.lifetime, absl::UTCTimeZone()),
                     wanted.hosts.empty() ? "" : ", as " + absl::StrJoin(wanted.hosts, ", ")));
    return absl::OkStatus();
  }

  absl::Status MakeAdmin() {
    MP_RETURN_IF_ERROR(MakeFolder(Path("client")));
    MP_RETURN_IF_ERROR(WriteFile(Path("client/ca.crt"), authority_.certificate, kPublic));
    const std::string digest = absl::StrCat(Path("coordinator/"), kAdminTokenFile);
    if (fs::exists(digest)) return absl::OkStatus();
    const NewToken token = MakeToken();
    MP_RETURN_IF_ERROR(WriteFile(Path("client/admin-token"), token.text + "\n", kSecret));
    MP_RETURN_IF_ERROR(WriteFile(digest, TokenDigestLine(token), kSecret));
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
