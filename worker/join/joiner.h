// How this host gets a worker's certificate with a join token, and keeps it from ending.
//
//   const JoinOptions options = {.coordinator = "head:7070", .tls_dir = dir + "/tls",
//                                .id = "gpu-01", .token = [] { return token; }};
//   MP_RETURN_IF_ERROR(JoinIfNeeded(options, pause));   // the folder has a good certificate
//   CertificateRenewer renewer(options);                // and keeps it so
//
// The key is made here and never leaves the host. Files of the folder are replaced one by one, each
// at once; connections that are open go on.
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
  std::string coordinator;  // host:port, or several with commas between
  std::string tls_dir;      // made if it is not there
  std::string id;           // the worker's
  JoinTokenSource token;    // empty: a certificate is renewed, none is got anew
  // PEM file of whom to trust while joining. Empty: what comes with the token, else the ca.crt that
  // the folder has.
  std::string authority;
};

// When a certificate is to be renewed: after half of its life, less up to a tenth of it, so
// that hosts which joined together do not come together again. `spread`: [0, 1). Pure.
absl::Time RenewTime(const Certificate& certificate, double spread);

// Waits for so long. False: the process is to end.
using Pause = std::function<bool(absl::Duration)>;

// Joins unless the folder has a certificate that holds; and where one that came of a join token is
// of an older authority than the token, as after the coordinator's was made anew. While the
// coordinator cannot be reached, or is busy, it is tried again for as long as `pause` says so
// (CANCELLED when it does not), with a line in the log where something new is wrong; while a worker
// of this id is connected, for three minutes, as a host that was replaced may have left its
// connection behind. Other errors: what the coordinator, or this host, has against it.
absl::Status JoinIfNeeded(const JoinOptions& options, const Pause& pause);

// Renews the folder's certificate from a thread of its own until it is destroyed, which waits for a
// call in progress (10 s at most). A certificate that did not come of a join token is left alone.
// One that has ended all the same is got anew with the token, where there is one that holds.
class CertificateRenewer {
 public:
  explicit CertificateRenewer(JoinOptions options);
  ~CertificateRenewer();
  CertificateRenewer(const CertificateRenewer&) = delete;
  CertificateRenewer& operator=(const CertificateRenewer&) = delete;

 private:
  void Run();
  // How long until the next look.
  absl::Duration Look();
  // False: the renewer is to end.
  bool Sleep(absl::Duration duration);
  absl::Status Renew();

  const JoinOptions options_;
  const double spread_;
  std::string said_;  // of the thread
  absl::Time say_again_ = absl::InfinitePast();
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_JOIN_JOINER_H_
