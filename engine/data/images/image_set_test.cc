#include "engine/data/images/image_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/data/images/shard_index.h"
#include "engine/data/images/tar.h"
#include "engine/data/images/testing.h"

namespace milepost::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class ImageSetTest : public testing::Test {
 protected:
  ImageSetTest() {
    std::string name = testing::TempDir() + "/images_XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~ImageSetTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& bytes) {
    const std::string path = folder_ + "/" + name;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string Refusal(const std::string& path, const ImageSetOptions& options = {}) {
    const auto set = OpenImageSet(path, options);
    EXPECT_FALSE(set.ok()) << path;
    return std::string(set.status().message());
  }

  std::string folder_;
};

std::string Bytes(const ImageSet& set, int64_t image, int64_t limit = ImageSet::kWhole) {
  std::string storage;
  StoredImage stored;
  EXPECT_TRUE(set.Read(image, limit, &storage, &stored).ok());
  return std::string(stored.bytes);
}

TEST_F(ImageSetTest, FolderIsSortedByName) {
  Write("train/dog/b.jpg", "dog b");
  Write("train/dog/a.PNG", "dog a");
  Write("train/cat/10.jpeg", "cat 10");
  Write("train/cat/9.jpg", "cat 9");
  Write("train/cat/notes.txt", "ignored");
  Write("train/cat/.hidden.jpg", "ignored");
  Write("train/cat/deeper/x.jpg", "ignored");
  Write("train/readme.md", "ignored");
  const auto set = OpenImageSet(folder_ + "/train", {.classes = 2});
  ASSERT_TRUE(set.ok()) << set.status();
  ASSERT_EQ((*set)->size(), 4);
  EXPECT_THAT((*set)->class_names(), ElementsAre("cat", "dog"));
  const char* want[] = {"cat 10", "cat 9", "dog a", "dog b"};
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(Bytes(**set, i), want[i]);
    EXPECT_EQ((*set)->LabelOf(i), i / 2);
  }
  EXPECT_EQ((*set)->NameOf(2), folder_ + "/train/dog/a.PNG");
  EXPECT_EQ(Bytes(**set, 0, 3), "cat");
}

TEST_F(ImageSetTest, ValidationFolderTakesTheTrainingClasses) {
  Write("train/a/1.jpg", "x");
  Write("train/b/1.jpg", "x");
  Write("train/c/1.jpg", "x");
  Write("val/c/1.jpg", "x");
  const auto train = OpenImageSet(folder_ + "/train", {});
  ASSERT_TRUE(train.ok());
  const auto val = OpenImageSet(folder_ + "/val", {.class_names = (*train)->class_names()});
  ASSERT_TRUE(val.ok());
  EXPECT_EQ((*val)->LabelOf(0), 2);
  Write("val/d/1.jpg", "x");
  EXPECT_THAT(Refusal(folder_ + "/val", {.class_names = (*train)->class_names()}),
              HasSubstr("/val/d: the training data has no class of that name"));
}

TEST_F(ImageSetTest, RefusesFoldersThatAreNoSet) {
  EXPECT_EQ(OpenImageSet(folder_ + "/none", {}).status().code(), absl::StatusCode::kNotFound);
  std::filesystem::create_directories(folder_ + "/empty");
  EXPECT_THAT(Refusal(folder_ + "/empty"), HasSubstr("no class folders"));
  std::filesystem::create_directories(folder_ + "/hollow/a");
  EXPECT_THAT(Refusal(folder_ + "/hollow"), HasSubstr("hollow/a: a class without images"));
  Write("many/a/1.jpg", "x");
  Write("many/b/1.jpg", "x");
  EXPECT_THAT(Refusal(folder_ + "/many", {.classes = 1}), HasSubstr("many/b/1.jpg: class 1"));
  EXPECT_THAT(Refusal(Write("file.zip", "x")), HasSubstr("an image set is"));
  Write("holes/a/1.jpg", "");
  const auto set = OpenImageSet(folder_ + "/holes", {});
  ASSERT_TRUE(set.ok());
  std::string storage;
  StoredImage stored;
  EXPECT_THAT(std::string((*set)->Read(0, ImageSet::kWhole, &storage, &stored).message()),
              HasSubstr("holes/a/1.jpg: empty file"));
}

TEST(TarScanner, ReadsEveryFormatThatPythonWrites) {
  for (const char* name : {"gnu.tar", "pax.tar", "ustar.tar"}) {
    const std::string bytes = Golden(name);
    const auto entries = IndexShard(bytes);
    ASSERT_TRUE(entries.ok()) << name << ": " << entries.status();
    ASSERT_EQ(entries->size(), 3u) << name;
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ((*entries)[i].label, static_cast<int32_t>(i) * 7);
      EXPECT_EQ(bytes.substr(static_cast<size_t>((*entries)[i].offset), (*entries)[i].size),
                Golden("bit.png"));
    }
    TarScanner scanner(bytes);
    TarMember member;
    std::vector<std::string> names;
    while (scanner.Next(&member).value()) names.push_back(member.name);
    ASSERT_EQ(names.size(), 10u);
    std::string deep, nested;
    for (int i = 0; i < 18; ++i) deep += "deep/";
    for (int i = 0; i < 9; ++i) nested += "long/";
    EXPECT_EQ(names[6], deep + "0002.PNG") << name;
    EXPECT_EQ(names[9], nested + std::string(90, 'n') + ".PNG") << name;
  }
}

TEST(TarScanner, RefusesEveryTruncation) {
  const std::string bytes = Golden("pax.tar");
  const size_t end = bytes.find_last_not_of('\0') / 512 * 512 + 512;
  ASSERT_TRUE(IndexShard(bytes.substr(0, end + 512)).ok());
  for (size_t size = 0; size <= end; size += 100) {
    const auto entries = IndexShard(absl::string_view(bytes).substr(0, size));
    ASSERT_FALSE(entries.ok()) << size;
    EXPECT_THAT(std::string(entries.status().message()), HasSubstr("byte "));
  }
}

// One ustar member, its header made here.
std::string TarFile(const std::string& name, const std::string& data, char type = '0') {
  std::string block(512, '\0');
  std::memcpy(block.data(), name.data(), name.size());
  std::snprintf(block.data() + 124, 12, "%011o", static_cast<unsigned>(data.size()));
  block[156] = type;
  std::memcpy(block.data() + 257, "ustar\00000", 8);
  std::memset(block.data() + 148, ' ', 8);
  unsigned sum = 0;
  for (const char c : block) sum += static_cast<uint8_t>(c);
  std::snprintf(block.data() + 148, 8, "%06o", sum);
  block += data;
  block.resize((block.size() + 511) / 512 * 512);
  return block;
}
const std::string kEnd(1024, '\0');

std::string ShardRefusal(const std::string& bytes) {
  const auto entries = IndexShard(bytes);
  EXPECT_FALSE(entries.ok());
  return std::string(entries.status().message());
}

TEST(TarScanner, SaysWhatIsWrongAndWhere) {
  const std::string good = TarFile("k.cls", "3") + TarFile("k.jpg", "image");
  ASSERT_TRUE(IndexShard(good + kEnd).ok());
  EXPECT_THAT(ShardRefusal(good), HasSubstr("at byte 2048: no end mark"));
  std::string flipped = good + kEnd;
  flipped[1024 + 3] ^= 1;
  EXPECT_THAT(ShardRefusal(flipped), HasSubstr("at byte 1024: the header's checksum"));
  EXPECT_THAT(ShardRefusal(good + TarFile("x", "", 'S') + kEnd), HasSubstr("sparse"));
  EXPECT_THAT(ShardRefusal(TarFile("x", "999 path=a\n", 'x') + kEnd), HasSubstr("pax record"));
  EXPECT_THAT(ShardRefusal(TarFile("x", "25 size=9999999999999999\n", 'x') + good + kEnd),
              HasSubstr("truncated?"));
  EXPECT_THAT(ShardRefusal(TarFile("x", std::string(9000, 'n'), 'L') + good + kEnd),
              HasSubstr("a name of 9000 bytes"));
}

TEST(IndexShard, ChecksSamples) {
  const auto one = [](const std::string& a, const std::string& b) {
    return ShardRefusal(TarFile(a, "1") + TarFile(b, "2") + kEnd);
  };
  EXPECT_THAT(one("a.jpg", "b.jpg"), HasSubstr("'a' at byte 0 has no .cls"));
  EXPECT_THAT(one("a.cls", "b.jpg"), HasSubstr("has no .jpg"));
  EXPECT_THAT(one("a.jpg", "a.png"), HasSubstr("two images"));
  EXPECT_THAT(one("a.cls", "a.cls"), HasSubstr("two classes"));
  for (const char* label : {"", "-1", "cat", "99999999999"}) {
    EXPECT_THAT(ShardRefusal(TarFile("a.cls", label) + TarFile("a.jpg", "i") + kEnd),
                HasSubstr("not a number"));
  }
  // Others are ignored: text alone, no extension, hidden, in another folder under the same name.
  const auto entries =
      IndexShard(TarFile("t.txt", "x") + TarFile("Makefile", "x") + TarFile(".x.jpg", "x") +
                 TarFile("a/k.jpg", "ia") + TarFile("a/k.cls", "1") + TarFile("b/k.cls", "2") +
                 TarFile("b/k.v2.jpg", "x") + TarFile("b/k.png", "ib") + kEnd);
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[1].label, 2);
}

TEST(ExpandBraces, MakesNumberedNames) {
  EXPECT_THAT(ExpandBraces("s-{008..011}.tar").value(),
              ElementsAre("s-008.tar", "s-009.tar", "s-010.tar", "s-011.tar"));
  EXPECT_THAT(ExpandBraces("a/b.tar").value(), ElementsAre("a/b.tar"));
  for (const char* bad : {"{1..}", "{..2}", "{3..2}", "{a..b}", "{1..2}{1..2}", "}1..2{", "{1",
                          "{0..999999}", "{-1..2}", "{0000000001..2}"}) {
    EXPECT_FALSE(ExpandBraces(bad).ok()) << bad;
  }
}

TEST_F(ImageSetTest, ShardsHoldLabelsOfFurtherHeads) {
  const auto sample = [](const std::string& key, const std::string& label) {
    return TarFile(key + ".hue.cls", label) + TarFile(key + ".cls", "1") +
           TarFile(key + ".jpg", key);
  };
  Write("h/0.tar", sample("a", "2") + sample("b", "-1") + kEnd);
  Write("h/1.tar", sample("c", "0") + kEnd);
  const auto set = OpenImageSet(folder_ + "/h", {.classes = 2, .heads = {"Hue"}});
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_THAT((*set)->HeadLabels(0), ElementsAre(2, -1, 0));
  const auto refusal = [&](const std::string& bytes) {
    Write("h/1.tar", bytes + kEnd);
    return Refusal(folder_ + "/h", {.classes = 2, .heads = {"hue"}});
  };
  EXPECT_THAT(refusal(TarFile("c.cls", "1") + TarFile("c.jpg", "c")),
              HasSubstr("1.tar: the sample 'c' at byte 0 has no .hue.cls"));
  EXPECT_THAT(refusal(TarFile("c.hue.cls", "1") + sample("c", "1")), HasSubstr("two .hue.cls"));
  EXPECT_THAT(refusal(sample("c", "-2")), HasSubstr("from -1 to"));
  EXPECT_THAT(Refusal(folder_ + "/h/x.npy", {.classes = 2, .heads = {"hue"}}),
              HasSubstr("only .tar shards hold"));
}

TEST_F(ImageSetTest, ShardsFollowEachOther) {
  Write("s/b-1.tar", TarFile("x.cls", "5") + TarFile("x.jpg", "third") + kEnd);
  Write("s/b-0.tar", TarFile("x.cls", "3") + TarFile("x.jpg", "first") +
                         TarFile("y.jpg", "second") + TarFile("y.cls", "4") + kEnd);
  Write("s/b-2.tar", TarFile("README", "nothing") + kEnd);
  for (const std::string& path : {folder_ + "/s", folder_ + "/s/b-{0..1}.tar"}) {
    const auto set = OpenImageSet(path, {.classes = 6});
    ASSERT_TRUE(set.ok()) << set.status();
    ASSERT_EQ((*set)->size(), 3);
    EXPECT_EQ(Bytes(**set, 0), "first");
    EXPECT_EQ(Bytes(**set, 1), "second");
    EXPECT_EQ(Bytes(**set, 2), "third");
    EXPECT_EQ((*set)->LabelOf(2), 5);
    EXPECT_EQ((*set)->NameOf(2), folder_ + "/s/b-1.tar, the image at byte 1536");
  }
  EXPECT_THAT(Refusal(folder_ + "/s", {.classes = 5}), HasSubstr("class 5, but the model has 5"));
  EXPECT_EQ(OpenImageSet(folder_ + "/s/b-{0..3}.tar", {}).status().code(),
            absl::StatusCode::kNotFound);
  Write("s/b-1.tar", "short");
  EXPECT_THAT(Refusal(folder_ + "/s"), HasSubstr("b-1.tar: malformed tar at byte 0"));
  EXPECT_THAT(Refusal(folder_ + "/s/b-2.tar"), HasSubstr("no images"));
}

std::string Npy(const std::string& descr, const std::string& shape, const std::string& data) {
  std::string header =
      absl::StrCat("{'descr': '", descr, "', 'fortran_order': False, 'shape': ", shape, ", }\n");
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size());
  bytes += '\0';
  return bytes + header + data;
}

TEST_F(ImageSetTest, NpyPair) {
  std::string pixels;
  for (int i = 0; i < 2 * 3 * 4 * 3; ++i) pixels += static_cast<char>(i);
  const std::string path = Write("d/train.npy", Npy("|u1", "(2, 3, 4, 3)", pixels));
  EXPECT_EQ(OpenImageSet(path, {}).status().code(), absl::StatusCode::kNotFound);
  Write("d/train.labels.npy",
        Npy("<i8", "(2,)", std::string("\7\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0", 16)));
  const auto set = OpenImageSet(path, {.classes = 8});
  ASSERT_TRUE(set.ok()) << set.status();
  ASSERT_EQ((*set)->size(), 2);
  EXPECT_EQ((*set)->LabelOf(0), 7);
  EXPECT_EQ((*set)->LabelOf(1), 1);
  std::string storage;
  StoredImage stored;
  ASSERT_TRUE((*set)->Read(1, ImageSet::kWhole, &storage, &stored).ok());
  EXPECT_EQ(stored.bytes, pixels.substr(36));
  EXPECT_EQ(stored.width, 4);
  EXPECT_EQ(stored.height, 3);
  EXPECT_THAT(Refusal(path, {.classes = 7}), HasSubstr("train.npy, image 0: class 7"));
  Write("d/train.labels.npy", Npy("<i4", "(2,)", std::string("\1\0\0\0\xFF\xFF\xFF\xFF", 8)));
  EXPECT_THAT(Refusal(path), HasSubstr("class -1"));
  Write("d/train.labels.npy", Npy("<i4", "(1,)", std::string(4, '\0')));
  EXPECT_THAT(Refusal(path), HasSubstr("1 labels, but"));
  Write("d/train.labels.npy", Npy("<f4", "(2,)", std::string(8, '\0')));
  EXPECT_THAT(Refusal(path), HasSubstr("labels are int32 or int64"));
  for (const char* shape : {"(2, 3, 4)", "(2, 3, 4, 4)", "(2, 0, 4, 3)"}) {
    Write("d/train.npy", Npy("|u1", shape, pixels));
    EXPECT_THAT(Refusal(path), HasSubstr("images are uint8 [N, height, width, 3]"));
  }
  for (const char* shape : {"(3, 3, 4, 3)", "(9223372036854775807, 3, 4, 3)"}) {
    Write("d/train.npy", Npy("|u1", shape, pixels));
    EXPECT_THAT(Refusal(path), HasSubstr("bytes"));
  }
}

}  // namespace
}  // namespace milepost::data
