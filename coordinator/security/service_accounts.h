// Identifies who asks to join with the token of a Kubernetes service account, by the cluster's
// present keys.
//
//   MP_ASSIGN_OR_RETURN(auto accounts, ServiceAccounts::Open(
//       {.keys = "https://kubernetes.default.svc/openid/v1/jwks",
//        .authority = "/etc/milepost/api/ca.crt", .token = "/etc/milepost/api/token",
//        .claims = {.issuer = "https://kubernetes.default.svc.cluster.local"}}));
//   MP_ASSIGN_OR_RETURN(ServiceAccount who, accounts->Identify(token, absl::Now()));
//
// A thread of its own reads the keys once a minute, and soon after a token has named an unknown
// key. When the keys cannot be read, the earlier ones still count, and the log says why.
// Thread-safe.
#ifndef MILEPOST_COORDINATOR_SECURITY_SERVICE_ACCOUNTS_H_
#define MILEPOST_COORDINATOR_SECURITY_SERVICE_ACCOUNTS_H_

#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/security/service_account_token.h"

namespace milepost::coordinator {

struct ServiceAccountOptions {
  std::string keys;       // file or https:// address of a JSON Web Key Set
  std::string authority;  // for an address: PEM file of the authority; empty: the system's
  std::string token;      // for an address: file with the bearer token; empty: none
  ClaimRules claims;
  absl::Duration every = absl::Minutes(1);
  absl::Duration again = absl::Seconds(10);  // least time between two reads
};

class ServiceAccounts {
 public:
  // INVALID_ARGUMENT: the options. Otherwise the errors of a file that cannot be read or is not a
  // key set. Does not wait for an address, which may become available later than this coordinator.
  static absl::StatusOr<std::unique_ptr<ServiceAccounts>> Open(ServiceAccountOptions options);
  // Ends a running read.
  ~ServiceAccounts();
  ServiceAccounts(const ServiceAccounts&) = delete;
  ServiceAccounts& operator=(const ServiceAccounts&) = delete;

  // UNAUTHENTICATED: the token is not genuine, or not for this coordinator. UNAVAILABLE: the keys
  // have not been read yet, or not since the cluster changed them. Does not block.
  absl::StatusOr<ServiceAccount> Identify(absl::string_view token, absl::Time now);

 private:
  explicit ServiceAccounts(ServiceAccountOptions options) : options_(std::move(options)) {}
  absl::Status Read();
  void ReadAndTell();
  std::shared_ptr<const KeySet> Keys();  // nullptr: not read yet
  bool Wait();
  bool Stops();
  void Run();

  const ServiceAccountOptions options_;
  std::string said_;  // used by the thread only
  absl::Mutex mutex_;
  std::shared_ptr<const KeySet> keys_ ABSL_GUARDED_BY(mutex_);
  bool wanted_ ABSL_GUARDED_BY(mutex_) = false;  // a token has named an unknown key
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_SERVICE_ACCOUNTS_H_
