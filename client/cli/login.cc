#include "client/cli/login.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/regular_file.h"
#include "common/status_macros.h"
#include "common/unique_fd.h"

namespace milepost::client {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr off_t kMostBytes = 1 << 20;

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string FilePath() { return LoginFolder() + "/credentials"; }

absl::StatusOr<json> ReadFile() {
  const std::string path = FilePath();
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.ok() && errno == ENOENT) return json::object();
  struct stat info = {};
  if (!fd.ok() || fstat(fd.get(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is no plain file: delete it"));
  }
  if ((info.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, " holds secrets, and others may read it: chmod 600 ", path));
  }
  std::string text(static_cast<size_t>(std::min(info.st_size, kMostBytes)), '\0');
  const ssize_t size = read(fd.get(), text.data(), text.size());
  if (size < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
  json read = json::parse(text.substr(0, static_cast<size_t>(size)), nullptr,
                          /*allow_exceptions=*/false);
  if (read.is_object()) return read;
  return absl::FailedPreconditionError(
      absl::StrCat(path, " is not what `milepost auth login` writes: delete it and log in again"));
}

// Never readable by others, and whole or not at all.
absl::Status WriteSecret(const std::string& path, const std::string& text) {
  const std::string temporary = absl::StrCat(path, ".tmp.", getpid());
  unlink(temporary.c_str());
  UniqueFd fd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const auto size = static_cast<ssize_t>(text.size());
  if (fd.ok() && write(fd.get(), text.data(), text.size()) == size && fsync(fd.get()) == 0 &&
      std::rename(temporary.c_str(), path.c_str()) == 0) {
    return absl::OkStatus();
  }
  const absl::Status status = absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  unlink(temporary.c_str());
  return status;
}

std::string TextIn(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string AuthorityCopy(const std::string& coordinator) {
  std::string name = coordinator;
  for (char& c : name) {
    if (!absl::ascii_isalnum(c) && c != '.' && c != '-') c = '_';
  }
  return absl::StrCat(LoginFolder(), "/ca-", name, ".crt");
}

}  // namespace

std::string LoginFolder() {
  const std::string config = Variable("XDG_CONFIG_HOME");
  if (!config.empty()) return config + "/milepost";
  const std::string home = Variable("HOME");
  return home.empty() ? "" : home + "/.config/milepost";
}

absl::StatusOr<Login> FindLogin(const std::string& address) {
  Login login{.coordinator = address, .authority = "", .token = "", .project = ""};
  if (LoginFolder().empty()) return login;
  MP_ASSIGN_OR_RETURN(const json file, ReadFile());
  if (login.coordinator.empty()) login.coordinator = TextIn(file, "last");
  const auto all = file.find("coordinators");
  if (all == file.end() || !all->is_object()) return login;
  const auto found = all->find(login.coordinator);
  if (found == all->end() || !found->is_object()) return login;
  login.authority = TextIn(*found, "authority");
  login.token = TextIn(*found, "token");
  login.project = TextIn(*found, "project");
  return login;
}

absl::Status SaveLogin(const Login& login) {
  const std::string folder = LoginFolder();
  if (folder.empty()) {
    return absl::FailedPreconditionError("neither HOME nor XDG_CONFIG_HOME is set");
  }
  std::error_code error;
  fs::create_directories(folder, error);
  if (error || chmod(folder.c_str(), 0700) != 0) {
    return absl::ErrnoToStatus(error ? error.value() : errno, absl::StrCat("cannot make ", folder));
  }
  MP_ASSIGN_OR_RETURN(json file, ReadFile());
  json entry = {{"token", login.token}, {"project", login.project}, {"authority", ""}};
  if (!login.authority.empty()) {
    MP_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(login.authority, kMostBytes));
    const std::string copy = AuthorityCopy(login.coordinator);
    MP_RETURN_IF_ERROR(WriteSecret(copy, text));
    entry["authority"] = copy;
  }
  if (!file.contains("coordinators") || !file["coordinators"].is_object()) {
    file["coordinators"] = json::object();
  }
  file["coordinators"][login.coordinator] = std::move(entry);
  file["last"] = login.coordinator;
  return WriteSecret(FilePath(), file.dump(2) + "\n");
}

Login WithEnvironment(Login login) {
  if (std::string value = Variable("MILEPOST_CA"); !value.empty()) login.authority = value;
  if (std::string value = Variable("MILEPOST_TOKEN"); !value.empty()) login.token = value;
  if (std::string value = Variable("MILEPOST_PROJECT"); !value.empty()) login.project = value;
  return login;
}

absl::StatusOr<Endpoint> EndpointOf(const Login& login) {
  MP_RETURN_IF_ERROR(Annotate(CheckAddresses(login.coordinator), "--coordinator"));
  if (!login.authority.empty()) {
    MP_ASSIGN_OR_RETURN(auto credentials, UserCredentials(login.authority, login.token));
    return Endpoint(login.coordinator, std::move(credentials));
  }
  if (IsLoopback(login.coordinator)) return Endpoint(login.coordinator);
  return absl::FailedPreconditionError(absl::StrCat(
      login.coordinator, " is not on this host, and nothing is sent there without TLS: ",
      "`milepost auth login --coordinator ", login.coordinator,
      " --ca FILE` with the authority's "
      "certificate, or set MILEPOST_CA to it"));
}

}  // namespace milepost::client
