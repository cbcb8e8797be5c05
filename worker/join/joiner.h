// Gets a worker's certificate for this host with a join token, and renews it before it expires.
//
//   const JoinOptions options = {.coordinator = "head:7070", .tls_dir = dir + "/tls",
//                                .id = "gpu-01", .token = [] { return token; }};
//   MP_RETURN_IF_ERROR(JoinIfNeeded(options, pause));   // the folder has a good certificate
//   CertificateRenewer renewer(options);                // and keeps it good
//
// The key is made here and never leaves the host. The folder's files are replaced one by one, each
// atomically. Open connections go on.
#ifndef MILEPOST_WORKER_JOIN_JOINER_H_
#define MILEPOST_WORKER_JOIN_JOINER_H_

#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/pki/certificate.h"
#include "worker/join/join_token.h"

namespace milepost::worker {

struct JoinOptions {
  std::string coordinator;  // host:port, or several separated by commas
  std::string tls_dir;      // made if it does not exist
  std::string id;           // the worker's
  JoinTokenSource token;    // empty: it renews a certificate, but never gets a first one
  // PEM file of the authority to trust while joining. Empty: the authority that comes with the
  // token, or else ca.crt in the folder.
  std::string authority;
};

// When to renew a certificate: after half of its life, minus `spread` times a tenth of its life. So
// hosts that joined together do not renew together. `spread`: [0, 1). Pure.
absl::Time RenewTime(const Certificate& certificate, double spread);

// Waits for the given time. False: the process is to end.
using Pause = std::function<bool(absl::Duration)>;

// Joins unless the folder has a valid certificate. It also replaces a certificate that came from a
// join token when the token is of a newer authority: the coordinator's authority was then made
// again. If this fails, it logs a warning and keeps the certificate.
//
// It tries again while the coordinator is busy or cannot be reached, as long as `pause` returns
// true. Otherwise it returns CANCELLED. The log gets a line when a new problem appears. While a
// worker of this id is connected, it tries for three minutes, because a replaced host may have left
// its connection behind. Other errors say why the coordinator, or this host, refuses.
absl::Status JoinIfNeeded(const JoinOptions& options, const Pause& pause);

// Renews the folder's certificate on a thread of its own. The destructor waits for a running call,
// at most 10 s. A certificate that did not come from a join token is left alone. When the
// certificate has expired, it gets a new one with the token, if that is valid.
class CertificateRenewer {
 public:
  explicit CertificateRenewer(JoinOptions options);
  ~CertificateRenewer();
  CertificateRenewer(const CertificateRenewer&) = delete;
  CertificateRenewer& operator=(const CertificateRenewer&) = delete;

 private:
  void Run();
  // Renews if due. Returns how long to wait until the next look.
  absl::Duration Look();
  // False: the renewer is to end.
  bool Sleep(absl::Duration duration);
  absl::Status Renew();

  const JoinOptions options_;
  const double spread_;
  std::string said_;  // used by the thread only
  absl::Time say_again_ = absl::InfinitePast();
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_JOIN_JOINER_H_
