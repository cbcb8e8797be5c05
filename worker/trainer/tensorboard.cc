#include "worker/trainer/tensorboard.h"

#include <fcntl.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace milepost::worker {

namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;

// Field numbers of tensorflow.Event, Summary, Summary.Value and SessionLog.
constexpr int kEventWallTime = 1;
constexpr int kEventStep = 2;
constexpr int kEventFileVersion = 3;
constexpr int kEventSummary = 5;
constexpr int kEventSessionLog = 7;
constexpr int kSummaryValue = 1;
constexpr int kValueTag = 1;
constexpr int kValueSimpleValue = 2;
constexpr int kSessionLogStatus = 1;
constexpr int kSessionLogStart = 1;

constexpr std::array<uint32_t, 256> MakeCrcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
    table[i] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = MakeCrcTable();

// TFRecord's: a checksum over data that holds checksums would else be weak.
uint32_t MaskedCrc(absl::string_view data) { return std::rotr(Crc32c(data), 15) + 0xa282ead8u; }

void AppendLittleEndian(uint64_t value, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i)));
}

std::string Encode(const std::function<void(CodedOutputStream*)>& write) {
  std::string bytes;
  google::protobuf::io::StringOutputStream stream(&bytes);
  CodedOutputStream out(&stream);
  write(&out);
  out.Trim();
  return bytes;
}

// An Event's time and step, and one message or text in field `field`.
std::string EncodeEvent(absl::Time now, int64_t step, int field, const std::string& what) {
  return Encode([&](CodedOutputStream* out) {
    WireFormatLite::WriteDouble(kEventWallTime, absl::ToDoubleSeconds(now - absl::UnixEpoch()),
                                out);
    if (step != 0) WireFormatLite::WriteInt64(kEventStep, step, out);
    WireFormatLite::WriteBytes(field, what, out);
  });
}

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "host";
}

}  // namespace

uint32_t Crc32c(absl::string_view data) {
  uint32_t crc = ~0u;
  for (const char c : data) crc = crc >> 8 ^ kCrcTable[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  return ~crc;
}

absl::StatusOr<std::unique_ptr<TensorBoardWriter>> TensorBoardWriter::Create(
    const std::string& folder, int64_t start_step, absl::Time now) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot make ", folder));
  const std::string path = absl::StrCat(folder, "/events.out.tfevents.", absl::ToUnixSeconds(now),
                                        ".", HostName(), ".", getpid());
  UniqueFd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd.ok()) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  std::unique_ptr<TensorBoardWriter> writer(new TensorBoardWriter(path, std::move(fd)));
  writer->AddRecord(EncodeEvent(now, 0, kEventFileVersion, "brain.Event:2"));
  const std::string start = Encode([](CodedOutputStream* out) {
    WireFormatLite::WriteEnum(kSessionLogStatus, kSessionLogStart, out);
  });
  writer->AddRecord(EncodeEvent(now, start_step + 1, kEventSessionLog, start));
  if (absl::Status status = writer->Flush(); !status.ok()) return status;
  return writer;
}

void TensorBoardWriter::Add(absl::string_view tag, int64_t step, double value, absl::Time now) {
  if (!fd_.ok()) return;
  const std::string scalar = Encode([&](CodedOutputStream* out) {
    WireFormatLite::WriteString(kValueTag, std::string(tag), out);
    WireFormatLite::WriteFloat(kValueSimpleValue, static_cast<float>(value), out);
  });
  const std::string summary = Encode(
      [&](CodedOutputStream* out) { WireFormatLite::WriteBytes(kSummaryValue, scalar, out); });
  AddRecord(EncodeEvent(now, step, kEventSummary, summary));
}

void TensorBoardWriter::AddRecord(const std::string& event) {
  std::string length;
  AppendLittleEndian(event.size(), 8, &length);
  pending_ += length;
  AppendLittleEndian(MaskedCrc(length), 4, &pending_);
  pending_ += event;
  AppendLittleEndian(MaskedCrc(event), 4, &pending_);
}

absl::Status TensorBoardWriter::Flush() {
  absl::string_view rest = pending_;
  while (!rest.empty() && fd_.ok()) {
    const ssize_t wrote = write(fd_.get(), rest.data(), rest.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      const int error = errno;
      fd_.Reset();
      pending_.clear();
      return absl::ErrnoToStatus(error, absl::StrCat("cannot write ", path_));
    }
    rest.remove_prefix(static_cast<size_t>(wrote));
  }
  pending_.clear();
  return absl::OkStatus();
}

}  // namespace milepost::worker
