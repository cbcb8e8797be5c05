// The worker's stream to the coordinator, kept open for ever: connects, says Hello, sends what the
// outbox has and heartbeats, hands what the coordinator says to a callback, and starts over when
// the stream ends (after 50 ms, growing to 1 s, with jitter), with the next one where there are
// several coordinators.
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
  // Called on the session's thread, one message at a time; should return quickly. Not for Welcome.
  using Handler = std::function<void(v1::CoordinatorMessage)>;
  // Called there too, when the coordinator has refused this process for the incarnation `known` and
  // has never let it in. The next Hello follows. Once it was let in, a refusal means that another
  // process has started since, and nothing is called.
  using Superseded = std::function<void(int64_t known)>;

  // Starts connecting to `coordinator` in the background. `outbox` outlives this. `changed` is
  // called, on the session's thread, when `registered` has changed; may be empty.
  Session(Endpoint coordinator, Outbox* outbox, Handler handler, Superseded superseded,
          std::function<void()> changed = nullptr);
  // Ends the stream after what was already sent, and its threads; bounded by about 2 s.
  ~Session();

  // The coordinator has taken this worker in, and the stream has not ended.
  bool registered() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace milepost::worker

#endif  // MILEPOST_WORKER_AGENT_SESSION_H_
