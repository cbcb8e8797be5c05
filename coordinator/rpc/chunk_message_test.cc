#include "coordinator/rpc/chunk_message.h"

#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <string>

namespace milepost::coordinator {
namespace {

using ::google::protobuf::util::MessageDifferencer;

v1::WriteChunksRequest Whole(size_t data_bytes) {
  v1::WriteChunksRequest request;
  request.set_checkpoint("checkpoints/12");
  request.set_stream(3);
  request.set_generation(4);
  request.mutable_chunk()->set_tensor(5);
  request.mutable_chunk()->set_begin(6);
  request.mutable_chunk()->set_end(7);
  request.mutable_chunk()->set_xxh3(0x1122334455667788);
  std::string* data = request.mutable_chunk()->mutable_data();
  for (size_t i = 0; i < data_bytes; ++i) data->push_back(static_cast<char>(i * 37));
  return request;
}

// In pieces of `piece` bytes, as gRPC's slices are.
absl::Cord CordIn(absl::string_view bytes, size_t piece) {
  absl::Cord cord;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    cord.Append(absl::MakeCordFromExternal(bytes.substr(at, piece), [] {}));
  }
  return cord;
}

// Parses as protobuf does, or refuses where protobuf does.
void ExpectAsProtobuf(absl::string_view bytes) {
  v1::WriteChunksRequest expected;
  const bool good = expected.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  for (const size_t piece : {size_t{1}, size_t{3}, size_t{100}, bytes.size() + 1}) {
    ChunkMessage message;
    const absl::Status status = ParseChunkMessage(CordIn(bytes, piece), &message);
    ASSERT_EQ(status.ok(), good) << status << " by " << piece;
    if (!good) continue;
    v1::WriteChunksRequest came = message.request;
    EXPECT_TRUE(came.chunk().data().empty());
    if (came.has_chunk()) came.mutable_chunk()->set_data(std::string(message.data));
    EXPECT_TRUE(MessageDifferencer::Equals(came, expected))
        << came.ShortDebugString() << "\nnot " << expected.ShortDebugString();
  }
}

TEST(ChunkMessageTest, IsWhatProtobufMakesOfIt) {
  for (const size_t size : {0, 1, 127, 128, 70'000}) {
    ExpectAsProtobuf(Whole(size).SerializeAsString());
  }
  v1::WriteChunksRequest without = Whole(0);
  without.clear_chunk();
  ExpectAsProtobuf(without.SerializeAsString());
  ExpectAsProtobuf("");
}

TEST(ChunkMessageTest, DataAreNotCopied) {
  const std::string bytes = Whole(100'000).SerializeAsString();
  ChunkMessage message;
  ASSERT_TRUE(ParseChunkMessage(CordIn(bytes, bytes.size()), &message).ok());
  const absl::string_view data = *message.data.chunk_begin();
  EXPECT_EQ(data.size(), 100'000u);
  EXPECT_GE(data.data(), bytes.data());
  EXPECT_LT(data.data(), bytes.data() + bytes.size());
}

// A field that comes again replaces what came before, also in a second chunk.
TEST(ChunkMessageTest, PartsOfAMessageAreOne) {
  v1::WriteChunksRequest later;
  later.set_stream(9);
  later.mutable_chunk()->set_begin(60);
  const std::string first = Whole(50).SerializeAsString();
  ExpectAsProtobuf(first + later.SerializeAsString());
  later.mutable_chunk()->set_data("others");
  ExpectAsProtobuf(first + later.SerializeAsString());
  ExpectAsProtobuf(later.SerializeAsString() + first);
}

TEST(ChunkMessageTest, UnknownFieldsAreKept) {
  const std::string unknown =
      "\xa2\x06\x03"
      "abc"
      "\x98\x06\x07";
  std::string chunk = Whole(20).chunk().SerializeAsString() + unknown;
  const std::string bytes = unknown + "\x22" + static_cast<char>(chunk.size()) + chunk;
  ExpectAsProtobuf(bytes);
}

// Numbers may be written in more bytes than they need; tags and sizes in five at most.
TEST(ChunkMessageTest, LongNumbersAreTakenAsByProtobuf) {
  const std::string chunk = Whole(3).chunk().SerializeAsString();
  const char size = static_cast<char>(chunk.size());
  for (size_t more = 0; more < 11; ++more) {
    const std::string zeros = more == 0 ? "" : std::string(more - 1, '\x80') + std::string(1, '\0');
    const char mark = more == 0 ? '\0' : '\x80';
    const auto number = [&](char value) { return static_cast<char>(value | mark) + zeros; };
    ExpectAsProtobuf(number('\x22') + size + chunk);
    ExpectAsProtobuf(std::string("\x22") + number(size) + chunk);
    ExpectAsProtobuf(number('\x10') + "\x07");
    ExpectAsProtobuf("\x10" + number('\x07'));
    const std::string data = number('\x22') + number('\x03') + "abc";
    ExpectAsProtobuf(std::string("\x22") + static_cast<char>(data.size()) + data);
  }
}

TEST(ChunkMessageTest, WhatIsCutOffAnywhereIsRefusedAsByProtobuf) {
  const std::string bytes = Whole(40).SerializeAsString();
  for (size_t size = 0; size < bytes.size(); ++size) ExpectAsProtobuf(bytes.substr(0, size));
}

TEST(ChunkMessageTest, AnyByteMayBeAnother) {
  const std::string bytes = Whole(10).SerializeAsString();
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string changed = bytes;
      changed[at] = static_cast<char>(byte);
      ExpectAsProtobuf(changed);
    }
  }
}

}  // namespace
}  // namespace milepost::coordinator
