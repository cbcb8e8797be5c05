// Who asks to join with the token of a Kubernetes service account, by the keys of the cluster as
// they are now.
//
//   MP_ASSIGN_OR_RETURN(auto accounts, ServiceAccounts::Open(
//       {.keys = "https://kubernetes.default.svc/openid/v1/jwks",
//        .authority = "/etc/milepost/api/ca.crt", .token = "/etc/milepost/api/token",
//        .claims = {.issuer = "https://kubernetes.default.svc.cluster.local"}}));
//   MP_ASSIGN_OR_RETURN(ServiceAccount who, accounts->Identify(token, absl::Now()));
//
// A thread of its own reads the keys once a minute, and soon after a token has named one that is
// not known. Where they cannot be read those before count on, and the log says why. Thread-safe.
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
  std::string keys;       // a file, or an https:// address, of a JSON Web Key Set
  std::string authority;  // of an address: PEM file of whom to trust; empty: the system's
  std::string token;      // of an address: file with the bearer token to show; empty: none
  ClaimRules claims;
  absl::Duration every = absl::Minutes(1);
  absl::Duration again = absl::Seconds(10);  // at the earliest
};

class ServiceAccounts {
 public:
  // INVALID_ARGUMENT: the options; the errors of a file that cannot be read, or is no key set. Does
  // not wait for an address, which may come up later than this coordinator.
  static absl::StatusOr<std::unique_ptr<ServiceAccounts>> Open(ServiceAccountOptions options);
  // Ends what is under way.
  ~ServiceAccounts();
  ServiceAccounts(const ServiceAccounts&) = delete;
  ServiceAccounts& operator=(const ServiceAccounts&) = delete;

  // UNAUTHENTICATED: it is not genuine, or not for this coordinator; UNAVAILABLE: the keys have not
  // been read yet, or not since the cluster has changed them. Blocks on nothing.
  absl::StatusOr<ServiceAccount> Identify(absl::string_view token, absl::Time now);

 private:
  explicit ServiceAccounts(ServiceAccountOptions options) : options_(std::move(options)) {}
  absl::Status Read();
  void ReadAndTell();
  bool Wait();
  bool Stops();
  void Run();

  const ServiceAccountOptions options_;
  std::string said_;  // of the thread
  absl::Mutex mutex_;
  std::shared_ptr<const KeySet> keys_ ABSL_GUARDED_BY(mutex_);
  bool wanted_ ABSL_GUARDED_BY(mutex_) = false;  // a token names a key that is not known
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_SECURITY_SERVICE_ACCOUNTS_H_
