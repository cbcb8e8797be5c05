// Which connections a coordinator takes, whose turn it is, and which it cuts. Decides alone: it
// knows connections by number and has no sockets; time is an argument. Thread-safe.
//
//   ConnectionTable table({.all = 4096});
//   MP_ASSIGN_OR_RETURN(uint64_t id, table.Add("10.0.0.7", now));   // else: close it
//   while (auto turn = table.NextTurn(now)) ...                     // gRPC gets turn->id
//   if (table.LoggedIn(id)) ...                                     // once a call has shown who
//   for (uint64_t id : table.Overdue(now)) ...                      // to be cut
//   table.Remove(id);                                               // when it has ended
//
// A connection that has not shown who makes it costs what gRPC keeps for whatever it sends, so few
// of them are gRPC's at a time. The others queue; addresses take turns, so that nobody's crowd
// keeps others out.
#ifndef MILEPOST_COORDINATOR_RPC_CONNECTION_TABLE_H_
#define MILEPOST_COORDINATOR_RPC_CONNECTION_TABLE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace milepost::coordinator {

struct ConnectionLimits {
  int all = 4096;
  int of_address = 4096;
  // Without a login yet. 0 slots: nobody needs to log in.
  int slots = 32;  // that gRPC has; each has a number
  int slots_of_address = 8;
  int queued_of_address = 256;
  int queued = 2048;
  absl::Duration login = absl::Seconds(15);  // from its turn on
  // When others wait for the place.
  absl::Duration hurried_login = absl::Seconds(4);
  // Until the coordinator, however busy, has read its first call a client may send a handshake,
  // headers, and what HTTP/2's window for a connection lets it (RFC 9113, 6.9.2: 64 KiB less one);
  // and that several times over.
  int64_t bytes_before_login = 256 << 10;
  int calls_before_login = 64;  // also refused ones in a row after it
  // An address of which one was cut for what it did has its next turn so much later, and one slot
  // alone until `suspicion` after the last: what gRPC does with a flood before it is cut takes up
  // to a second of a core. Our clients wait a second for a connection.
  absl::Duration pause = absl::Milliseconds(500);
  absl::Duration suspicion = absl::Seconds(10);
  // How long an answer may wait for its client; and when more than `many_answers` of all clients
  // do, those with the most first. The server has a thread for each; on a network that delivers,
  // they wait for milliseconds.
  absl::Duration answer = absl::Minutes(2);
  int many_answers = 200;
  absl::Duration hurried_answer = absl::Seconds(1);
};

class ConnectionTable {
 public:
  explicit ConnectionTable(const ConnectionLimits& limits);

  // RESOURCE_EXHAUSTED: too many, of `address` or of all.
  absl::StatusOr<uint64_t> Add(const std::string& address, absl::Time now);

  struct Turn {
    uint64_t id = 0;
    int slot = 0;
  };
  std::optional<Turn> NextTurn(absl::Time now);

  // gRPC has it from now on: its time for a login begins.
  void Given(uint64_t id, absl::Time now);
  // It needs no slot any more. False: it had logged in before, or is gone.
  bool LoggedIn(uint64_t id);
  // A call of it has not logged in: true when that was one too many since the last that has. Of who
  // has logged in before only those count that were refused: its token may have been revoked.
  bool Called(uint64_t id, bool refused);
  // It has sent so much: true when that is too much.
  bool Sent(uint64_t id, int64_t bytes) const;
  // It is cut for what it did.
  void Misbehaved(uint64_t id, absl::Time now);
  void Remove(uint64_t id);
  // An answer waits for its client from now on. Returns its number, for AnswerEnds.
  uint64_t AnswerBegins(uint64_t id, absl::Time now);
  void AnswerEnds(uint64_t id, uint64_t answer);

  // Who has it; 0: nobody.
  uint64_t InSlot(int slot) const;
  // Those in slots.
  std::vector<uint64_t> Unknown() const;
  // Is there anybody without a login?
  bool HasStrangers() const;
  // Those whose time is over.
  std::vector<uint64_t> Overdue(absl::Time now);
  // Those whose answers have waited for too long.
  std::vector<uint64_t> Unread(absl::Time now) const;
  size_t size() const;

 private:
  enum class State { kQueued, kUnknown, kKnown };
  struct Connection {
    std::string address;
    State state = State::kQueued;
    int slot = -1;
    int calls = 0;     // since its last login
    absl::Time since;  // in this state
  };
  struct Address {
    int all = 0;
    int in_slots = 0;
    std::deque<uint64_t> queue;
    absl::Time last_cut = absl::InfinitePast();  // for what it did
  };

  void FreeSlotLocked(Connection* connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsAwaitedLocked(const Connection& connection, absl::Time now) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  int SlotsOf(const Address& address, absl::Time now) const;

  const ConnectionLimits limits_;
  mutable absl::Mutex mutex_;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Connection> connections_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Address> addresses_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::string> turns_ ABSL_GUARDED_BY(mutex_);  // addresses that have a queue, each once
  // The one that was free the longest is taken first: gRPC may still have some of what was sent
  // over the connection that was there.
  std::deque<int> free_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> slots_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> suspects_ ABSL_GUARDED_BY(mutex_);  // kept when nothing is left of them
  int queued_ ABSL_GUARDED_BY(mutex_) = 0;
  // Since when, by connection and number.
  std::map<uint64_t, std::map<uint64_t, absl::Time>> answers_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace milepost::coordinator

#endif  // MILEPOST_COORDINATOR_RPC_CONNECTION_TABLE_H_
