#include "coordinator/security/service_accounts.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/curl.h"
#include "common/error_details.h"
#include "common/regular_file.h"
#include "common/status_macros.h"
#include "common/version.h"

namespace milepost::coordinator {
namespace {

constexpr absl::Duration kAnswerTime = absl::Seconds(10);

bool IsAddress(const std::string& keys) { return absl::StrContains(keys, "://"); }

// What is more than may be ends the transfer.
size_t Append(char* bytes, size_t, size_t count, void* text) {
  auto* all = static_cast<std::string*>(text);
  if (all->size() + count > kMostKeySetBytes) return 0;
  all->append(bytes, count);
  return count;
}

int Ask(void* stop, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return (*static_cast<const std::function<bool()>*>(stop))() ? 1 : 0;
}

// The header that shows the token of a file; empty without one.
absl::StatusOr<std::string> BearerOf(const std::string& path) {
  if (path.empty()) return "";
  MP_ASSIGN_OR_RETURN(const std::string token, ReadRegularFile(path, kMostAccountTokenBytes));
  const absl::string_view text = absl::StripAsciiWhitespace(token);
  if (!std::all_of(text.begin(), text.end(), absl::ascii_isgraph)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": no token"));
  }
  return absl::StrCat("Authorization: Bearer ", text);
}

absl::StatusOr<std::string> Get(const ServiceAccountOptions& options, std::function<bool()> stop) {
  MP_ASSIGN_OR_RETURN(const std::string bearer, BearerOf(options.token));
  InitialiseCurlOnce();
  const OwnedCurl owned(curl_easy_init());
  CURL* curl = owned.get();
  if (curl == nullptr) return absl::UnavailableError("no memory for a connection");
  std::string body;
  char detail[CURL_ERROR_SIZE] = "";
  const OwnedCurlList headers(bearer.empty() ? nullptr
                                             : curl_slist_append(nullptr, bearer.c_str()));
  curl_easy_setopt(curl, CURLOPT_URL, options.keys.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "https");
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  if (!options.authority.empty()) {
    curl_easy_setopt(curl, CURLOPT_CAINFO, options.authority.c_str());
    curl_easy_setopt(curl, CURLOPT_CAPATH, nullptr);
  }
  curl_easy_setopt(curl, CURLOPT_USERAGENT, absl::StrCat("milepost/", kVersion).c_str());
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, absl::ToInt64Milliseconds(kAnswerTime));
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_QUICK_EXIT, 1L);  // not for a name service that hangs, either
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, detail);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, Append);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &body);
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, Ask);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &stop);
  const CURLcode code = curl_easy_perform(curl);
  if (code != CURLE_OK) {
    return absl::UnavailableError(
        absl::StrCat(options.keys, ": ", detail[0] != '\0' ? detail : curl_easy_strerror(code)));
  }
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  if (status == 200) return body;
  const bool forbidden = status == 401 || status == 403;
  return absl::UnavailableError(
      absl::StrCat(options.keys, ": it answers with HTTP status ", status,
                   forbidden ? "; the API server gives its keys to who shows a token of a service "
                               "account: --service-account-keys-token"
                             : ""));
}

absl::Status CheckOptions(const ServiceAccountOptions& options) {
  if (options.claims.issuer.empty()) {
    return absl::InvalidArgumentError(
        "--service-account-keys: needs --service-account-issuer, the API server's "
        "--service-account-issuer");
  }
  if (options.claims.audience.empty()) {
    return absl::InvalidArgumentError("--service-account-audience: must not be empty");
  }
  if (!IsAddress(options.keys)) {
    if (options.authority.empty() && options.token.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "--service-account-keys-ca and --service-account-keys-token: go with an https:// address "
        "as --service-account-keys");
  }
  if (absl::StartsWith(options.keys, "https://")) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--service-account-keys: must be a file or an https:// address, not ",
                   options.keys, ": whoever could change the keys could join"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ServiceAccounts>> ServiceAccounts::Open(
    ServiceAccountOptions options) {
  MP_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<ServiceAccounts> accounts(new ServiceAccounts(std::move(options)));
  if (!IsAddress(accounts->options_.keys)) {
    MP_RETURN_IF_ERROR(Annotate(accounts->Read(), "--service-account-keys"));
  }
  accounts->thread_ = std::thread([self = accounts.get()] { self->Run(); });
  return accounts;
}

ServiceAccounts::~ServiceAccounts() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

bool ServiceAccounts::Stops() {
  absl::MutexLock lock(&mutex_);
  return stop_;
}

absl::Status ServiceAccounts::Read() {
  auto text = IsAddress(options_.keys) ? Get(options_, [this] { return Stops(); })
                                       : ReadRegularFile(options_.keys, kMostKeySetBytes);
  MP_RETURN_IF_ERROR(text.status());
  auto keys = KeySet::Parse(*text);
  if (!keys.ok()) return Annotate(keys.status(), options_.keys);
  absl::MutexLock lock(&mutex_);
  keys_ = std::make_shared<const KeySet>(*std::move(keys));
  return absl::OkStatus();
}

// False: it is to end.
bool ServiceAccounts::Wait() {
  absl::MutexLock lock(&mutex_);
  const auto asked = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stop_ || wanted_ || keys_ == nullptr;
  };
  if (!mutex_.AwaitWithTimeout(absl::Condition(&stop_), options_.again)) {
    mutex_.AwaitWithTimeout(absl::Condition(&asked), options_.every - options_.again);
  }
  wanted_ = false;
  return !stop_;
}

void ServiceAccounts::Run() {
  if (IsAddress(options_.keys)) ReadAndTell();
  while (Wait()) ReadAndTell();
}

void ServiceAccounts::ReadAndTell() {
  const absl::Status status = Read();
  const bool same = said_ == status.message();
  said_ = std::string(status.message());
  if (same || Stops()) return;
  if (status.ok()) {
    spdlog::info("the keys of service accounts are read again");
  } else {
    spdlog::warn("the keys of service accounts cannot be read: {}; those before count", said_);
  }
}

std::shared_ptr<const KeySet> ServiceAccounts::Keys() {
  absl::MutexLock lock(&mutex_);
  return keys_;
}

absl::StatusOr<ServiceAccount> ServiceAccounts::Identify(absl::string_view token, absl::Time now) {
  const std::shared_ptr<const KeySet> keys = Keys();
  if (keys == nullptr) {
    return absl::UnavailableError(
        "the coordinator has not read the cluster's keys yet; its log says why");
  }
  const absl::StatusOr<std::string> claims = keys->Verify(token);
  if (absl::IsNotFound(claims.status())) {
    absl::MutexLock lock(&mutex_);
    wanted_ = true;
    return absl::UnavailableError(
        "the service account's token names a key that this coordinator does not know: it reads the "
        "cluster's keys anew now; try again in a moment");
  }
  MP_RETURN_IF_ERROR(claims.status());
  return ReadClaims(*claims, options_.claims, now);
}

}  // namespace milepost::coordinator
