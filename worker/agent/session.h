// The worker's stream to the coordinator, which is kept open all the time. The session connects,
// says Hello, and sends heartbeats and what the outbox has. It passes the coordinator's messages to
// a callback. When the stream ends, the session connects again after 50 ms, growing to 1 s, with
// jitter. With several coordinators it then tries the next one, and the pause grows to 400 ms only.
#ifndef MILEPOST_WORKER_AGENT_SESSION_H_
#define MILEPOST_WORKER_AGENT_SESSION_H_

#include <functional>
#include <memory>
#include <string>

#include "common/rpc/endpoint.h"
#include "milepost/v1/worker.pb.h"
#include "worker/agent/outbox.h"

namespace milepost::worker {

class Session {
 public:
  // Called on the session's thread, with one message at a time. Should return quickly. It does not
  // get Welcome.
  using Handler = std::function<void(v1::CoordinatorMessage)>;
  // Called on the session's thread when the coordinator has never let this process in, and refuses
  // it because it knows the higher incarnation `known`. The next Hello follows. Once the process
  // was let in, a refusal means that another process has started since. Then this is not called.
  using Superseded = std::function<void(int64_t known)>;

  // Starts connecting to `coordinator` in the background. `outbox` must outlive this object.
  // `changed` is called on the session's thread when `registered` has changed. It may be empty.
  Session(Endpoint coordinator, Outbox* outbox, Handler handler, Superseded superseded,
          std::function<void()> changed = nullptr);
  // Sends what was already queued, then ends the stream and its threads. Takes at most about 2 s.
  ~Session();

  // True while the coordinator has registered this worker and the stream has not ended.
  bool registered() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_SESSION_H_
