#include "coordinator/rpc/connection_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"

namespace milepost::coordinator {

ConnectionTable::ConnectionTable(const ConnectionLimits& limits)
    : limits_(limits), slots_(static_cast<size_t>(limits.slots), 0) {
  for (int slot = 0; slot < limits.slots; ++slot) free_.push_back(slot);
}

absl::StatusOr<uint64_t> ConnectionTable::Add(const std::string& address, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  if (connections_.size() >= static_cast<size_t>(limits_.all)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there are ", connections_.size(), " connections, which is the limit"));
  }
  const auto found = addresses_.find(address);
  const int own = found == addresses_.end() ? 0 : found->second.all;
  if (own >= limits_.of_address) {
    return absl::ResourceExhaustedError(
        absl::StrCat(address, " has ", own, " connections, which is the limit of one address"));
  }
  const size_t waiting = found == addresses_.end() ? 0 : found->second.queue.size();
  if (queued_ >= limits_.queued || waiting >= static_cast<size_t>(limits_.queued_of_address)) {
    return absl::ResourceExhaustedError(absl::StrCat(address, " has ", waiting,
                                                     " connections that wait for their login, of ",
                                                     queued_, " in all, which is the limit"));
  }
  const uint64_t id = ++last_id_;
  connections_[id] = {.address = address, .since = now};
  Address& its = addresses_[address];
  ++its.all;
  if (its.queue.empty()) turns_.push_back(address);
  its.queue.push_back(id);
  ++queued_;
  return id;
}

std::optional<ConnectionTable::Turn> ConnectionTable::NextTurn(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  const bool login = limits_.slots > 0;
  if (login && free_.empty()) return std::nullopt;
  for (size_t tried = turns_.size(); tried > 0; --tried) {
    const std::string address = std::move(turns_.front());
    turns_.pop_front();
    Address& its = addresses_.at(address);
    const bool waits = its.in_slots >= SlotsOf(its, now) || now < its.last_cut + limits_.pause;
    if (login && waits) {
      turns_.push_back(address);
      continue;
    }
    const Turn turn{.id = its.queue.front(), .slot = login ? free_.front() : 0};
    its.queue.pop_front();
    --queued_;
    if (!its.queue.empty()) turns_.push_back(address);
    Connection& connection = connections_.at(turn.id);
    connection.state = login ? State::kUnknown : State::kKnown;
    connection.since = now;
    if (!login) return turn;
    connection.slot = turn.slot;
    free_.pop_front();
    slots_[static_cast<size_t>(turn.slot)] = turn.id;
    ++its.in_slots;
    return turn;
  }
  return std::nullopt;
}

void ConnectionTable::FreeSlotLocked(Connection* connection) {
  if (connection->slot < 0) return;
  slots_[static_cast<size_t>(connection->slot)] = 0;
  free_.push_back(connection->slot);
  connection->slot = -1;
  --addresses_.at(connection->address).in_slots;
}

void ConnectionTable::Given(uint64_t id, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  const auto found = connections_.find(id);
  if (found != connections_.end()) found->second.since = now;
}

bool ConnectionTable::LoggedIn(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  const auto found = connections_.find(id);
  if (found == connections_.end()) return false;
  found->second.calls = 0;
  if (found->second.state != State::kUnknown) return false;
  FreeSlotLocked(&found->second);
  found->second.state = State::kKnown;
  return true;
}

bool ConnectionTable::Called(uint64_t id, bool refused) {
  absl::MutexLock lock(&mutex_);
  const auto found = connections_.find(id);
  if (found == connections_.end()) return false;
  if (found->second.state != State::kUnknown && !refused) return false;
  return ++found->second.calls > limits_.calls_before_login;
}

bool ConnectionTable::Sent(uint64_t id, int64_t bytes) const {
  absl::MutexLock lock(&mutex_);
  const auto found = connections_.find(id);
  return found != connections_.end() && found->second.state == State::kUnknown &&
         bytes > limits_.bytes_before_login;
}

void ConnectionTable::Misbehaved(uint64_t id, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  addresses_.at(found->second.address).last_cut = now;
  suspects_.insert(found->second.address);
}

void ConnectionTable::Remove(uint64_t id) {
  absl::MutexLock lock(&mutex_);
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  FreeSlotLocked(&found->second);
  const std::string& address = found->second.address;
  Address& its = addresses_.at(address);
  if (found->second.state == State::kQueued) {
    its.queue.erase(std::find(its.queue.begin(), its.queue.end(), id));
    --queued_;
    if (its.queue.empty()) turns_.erase(std::find(turns_.begin(), turns_.end(), address));
  }
  if (--its.all == 0 && !suspects_.contains(address)) addresses_.erase(address);
  connections_.erase(found);
}

uint64_t ConnectionTable::InSlot(int slot) const {
  absl::MutexLock lock(&mutex_);
  return slots_[static_cast<size_t>(slot)];
}

std::vector<uint64_t> ConnectionTable::Unknown() const {
  absl::MutexLock lock(&mutex_);
  std::vector<uint64_t> ids;
  for (const uint64_t id : slots_) {
    if (id != 0) ids.push_back(id);
  }
  return ids;
}

int ConnectionTable::SlotsOf(const Address& address, absl::Time now) const {
  return now < address.last_cut + limits_.suspicion ? 1 : limits_.slots_of_address;
}

// Is there another that could have its place?
bool ConnectionTable::IsAwaitedLocked(const Connection& connection, absl::Time now) const {
  const Address& its = addresses_.at(connection.address);
  const bool by_its_own = !its.queue.empty() && its.in_slots >= SlotsOf(its, now);
  return by_its_own || (free_.empty() && queued_ > 0);
}

bool ConnectionTable::HasStrangers() const {
  absl::MutexLock lock(&mutex_);
  return queued_ > 0 || static_cast<int>(free_.size()) < limits_.slots;
}

std::vector<uint64_t> ConnectionTable::Overdue(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  for (auto suspect = suspects_.begin(); suspect != suspects_.end();) {
    const auto found = addresses_.find(*suspect);
    const bool over = now >= found->second.last_cut + limits_.suspicion;
    if (over && found->second.all == 0) addresses_.erase(found);
    suspect = over ? suspects_.erase(suspect) : std::next(suspect);
  }
  std::vector<uint64_t> ids;
  for (const uint64_t id : slots_) {
    if (id == 0) continue;
    const Connection& connection = connections_.at(id);
    const absl::Duration time =
        IsAwaitedLocked(connection, now) ? limits_.hurried_login : limits_.login;
    if (now - connection.since >= time) ids.push_back(id);
  }
  for (const auto& [address, its] : addresses_) {
    for (const uint64_t id : its.queue) {
      if (now - connections_.at(id).since < limits_.login) break;
      ids.push_back(id);
    }
  }
  return ids;
}

uint64_t ConnectionTable::AnswerBegins(uint64_t id, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  answers_[id][++last_id_] = now;
  return last_id_;
}

void ConnectionTable::AnswerEnds(uint64_t id, uint64_t answer) {
  absl::MutexLock lock(&mutex_);
  const auto found = answers_.find(id);
  if (found == answers_.end() || found->second.erase(answer) == 0) return;
  if (found->second.empty()) answers_.erase(found);
}

std::vector<uint64_t> ConnectionTable::Unread(absl::Time now) const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::pair<size_t, uint64_t>> slow;  // how many wait, for whom
  int waiting = 0;
  for (const auto& [id, its] : answers_) {
    waiting += static_cast<int>(its.size());
    if (now - its.begin()->second >= limits_.hurried_answer) slow.emplace_back(its.size(), id);
  }
  std::sort(slow.rbegin(), slow.rend());
  std::vector<uint64_t> ids;
  for (const auto& [count, id] : slow) {
    const bool too_long = now - answers_.at(id).begin()->second >= limits_.answer;
    if (!too_long && waiting <= limits_.many_answers) continue;
    waiting -= static_cast<int>(count);
    ids.push_back(id);
  }
  return ids;
}

size_t ConnectionTable::size() const {
  absl::MutexLock lock(&mutex_);
  return connections_.size();
}

}  // namespace milepost::coordinator
