#include "common/rpc/endpoint.h"

#include <arpa/inet.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/pki/certificate.h"
#include "common/regular_file.h"
#include "common/rpc/tls_mirror.h"
#include "common/status_macros.h"

namespace milepost {
namespace {

using grpc::experimental::FileWatcherCertificateProvider;

constexpr unsigned kRefreshSeconds = 1;
constexpr size_t kMaxPemBytes = 1 << 20;  // a bundle of authorities has some 200 KiB

// gRPC 1.51 always lets OpenSSL go down to TLS 1.2; what it lets us choose are the cipher suites of
// 1.2 (those of 1.3 are not its business). The one named here needs a shared key that neither side
// has, so that 1.2 finds no suite. gRPC reads the variable when it first makes a TLS context.
void OnlyTls13() {
  static std::once_flag once;
  std::call_once(once, [] { setenv("GRPC_SSL_CIPHER_SUITES", "ECDHE-PSK-CHACHA20-POLY1305", 1); });
}

// gRPC says nothing of a file that it cannot use. Empty label: a private key.
absl::StatusOr<std::string> ReadPem(const std::string& path, const std::string& label) {
  auto text = ReadRegularFile(path, kMaxPemBytes);
  if (!text.ok()) {
    return absl::Status(
        text.status().code(),
        absl::StrCat(
            text.status().message(),
            absl::IsNotFound(text.status())
                ? "; `milepost-coordinator init-pki` makes certificates"
                : "; it has to belong to the user who runs this, whom chown makes its owner"));
  }
  if (absl::StrContains(*text, "-----BEGIN " + label) &&
      (!label.empty() || absl::StrContains(*text, "PRIVATE KEY-----"))) {
    return text;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      path, " holds no ", label.empty() ? "private key" : "certificate", " in PEM form"));
}

absl::StatusOr<std::shared_ptr<FileWatcherCertificateProvider>> Watch(const TlsFolder& folder) {
  MP_ASSIGN_OR_RETURN(const TlsPaths paths, MirrorTlsFolder(folder));
  return std::make_shared<FileWatcherCertificateProvider>(paths.key, paths.certificate,
                                                          paths.authority, kRefreshSeconds);
}

}  // namespace

absl::Status CheckPrivateKeyMode(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, " cannot be read"));
  }
  if ((info.st_mode & (S_IWGRP | S_IROTH | S_IWOTH)) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrFormat("%s is a private key that others may read or change (mode %04o): chmod 600 "
                      "%s, and make a new "
                      "one if somebody may have it",
                      path, info.st_mode & 07777, path));
}

absl::StatusOr<TlsFiles> ReadTlsFolder(const TlsFolder& folder) {
  TlsFiles files;
  MP_ASSIGN_OR_RETURN(files.authority, ReadPem(folder.authority(), "CERTIFICATE"));
  MP_ASSIGN_OR_RETURN(files.certificate, ReadPem(folder.certificate(), "CERTIFICATE"));
  MP_ASSIGN_OR_RETURN(files.key, ReadPem(folder.key(), ""));
  MP_RETURN_IF_ERROR(CheckPrivateKeyMode(folder.key()));
  MP_RETURN_IF_ERROR(Annotate(CheckKeyIsOf(files.certificate, files.key),
                              absl::StrCat(folder.certificate(), " and ", folder.key())));
  return files;
}

absl::Status CheckTlsFolder(const TlsFolder& folder) { return ReadTlsFolder(folder).status(); }

std::vector<std::string> SplitAddresses(absl::string_view addresses) {
  std::vector<std::string> split;
  for (absl::string_view address : absl::StrSplit(addresses, ',')) {
    address = absl::StripAsciiWhitespace(address);
    if (!address.empty()) split.emplace_back(address);
  }
  if (split.empty()) split.emplace_back();
  return split;
}

absl::Status CheckAddresses(absl::string_view addresses) {
  for (const std::string& address : SplitAddresses(addresses)) {
    const size_t colon = address.rfind(':');
    int port = 0;
    if (colon != std::string::npos && colon > 0 && address.find(']', colon) == std::string::npos &&
        absl::SimpleAtoi(address.substr(colon + 1), &port) && port > 0 && port < 65536) {
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("expected HOST:PORT, such as head.example.com:7070, not '", address, "'"));
  }
  return absl::OkStatus();
}

std::string TlsRemedy(absl::string_view message) {
  if (absl::StrContains(message, "certificate verify failed")) {
    return "; its certificate is of no authority that is trusted here: is ca.crt (--tls, --ca) "
           "that of "
           "this coordinator?";
  }
  if (absl::StrContains(message, "Hostname Verification Check failed")) {
    return "; its certificate does not have that name: `milepost-coordinator init-pki --host` "
           "makes "
           "one that has";
  }
  return "";
}

bool IsLoopback(absl::string_view address) {
  if (absl::StrContains(address, ',')) {
    const std::vector<std::string> all = SplitAddresses(address);
    return std::all_of(all.begin(), all.end(),
                       [](const std::string& one) { return IsLoopback(one); });
  }
  const std::string host(address.substr(0, address.rfind(':')));
  if (host == "localhost" || host == "[::1]") return true;
  in_addr bytes = {};  // a name such as 127.example.org may be anywhere
  return inet_pton(AF_INET, host.c_str(), &bytes) == 1 && ntohl(bytes.s_addr) >> 24 == 127;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> WorkerCredentials(
    const std::string& folder) {
  const TlsFolder files(folder);
  OnlyTls13();
  MP_ASSIGN_OR_RETURN(const auto watched, Watch(files));
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(watched);
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  return grpc::experimental::TlsCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> UserCredentials(
    const std::string& ca_file, const std::string& token) {
  MP_RETURN_IF_ERROR(ReadPem(ca_file, "CERTIFICATE").status());
  OnlyTls13();
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(
      std::make_shared<FileWatcherCertificateProvider>(ca_file, kRefreshSeconds));
  options.watch_root_certs();
  std::shared_ptr<grpc::ChannelCredentials> channel = grpc::experimental::TlsCredentials(options);
  if (token.empty()) return channel;
  return grpc::CompositeChannelCredentials(channel, grpc::AccessTokenCredentials(token));
}

absl::StatusOr<std::vector<std::shared_ptr<grpc::ServerCredentials>>> CoordinatorCredentials(
    const std::string& folder, int count) {
  const TlsFolder files(folder);
  OnlyTls13();
  MP_ASSIGN_OR_RETURN(const auto watched, Watch(files));
  std::vector<std::shared_ptr<grpc::ServerCredentials>> credentials;
  for (int i = 0; i < count; ++i) {
    // Each its own: gRPC's credentials take their options over, copies too.
    grpc::experimental::TlsServerCredentialsOptions options(watched);
    options.watch_root_certs();
    options.watch_identity_key_cert_pairs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
    credentials.push_back(grpc::experimental::TlsServerCredentials(options));
  }
  return credentials;
}

}  // namespace milepost
