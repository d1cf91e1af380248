#include "data/catalogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/nearest.h"
#include "dgc/error.h"

namespace dgc::data {
namespace {

namespace fs = std::filesystem;

/// Debian's packages first: those are one command away.
std::vector<DataSet> make_catalogue() {
  std::vector<DataSet> sets;
  sets.push_back({.name = "fashion-mnist",
                  .recipes = {"fashion"},
                  .what = "60,000 + 10,000 grey images of clothes, 28 x 28, 10 classes",
                  .size = "31 MB",
                  .package = "dataset-fashion-mnist",
                  .page = "https://github.com/zalandoresearch/fashion-mnist",
                  .how = "apt-get install dataset-fashion-mnist",
                  .places = {"/usr/share/datasets/fashion-mnist"},
                  .licence = "MIT"});
  sets.push_back({.name = "bible",
                  .recipes = {"text", "gpt"},
                  .what = "the King James Bible, 31,102 verses, 913,000 words",
                  .size = "2.5 MB",
                  .package = "bible-kjv",
                  .page = "",
                  .how = "apt-get install bible-kjv",
                  .places = {"/usr/bin/bible"},
                  .package_only = true,
                  .licence = "public domain"});
  sets.push_back({.name = "linux-doc",
                  .recipes = {"gpt"},
                  .what = "the documentation of Linux 6.1, 20 MB of English without markup",
                  .size = "37 MB",
                  .package = "linux-doc",
                  .page = "https://docs.kernel.org",
                  .how = "apt-get install linux-doc",
                  .places = {"/usr/share/doc/linux-doc-6.1/Documentation"},
                  .licence = "GPL-2.0"});
  sets.push_back({.name = "asterisk",
                  .recipes = {"speech"},
                  .what = "568 spoken prompts of a telephone exchange, 25 minutes, 8 kHz",
                  .size = "18 MB",
                  .package = "asterisk-core-sounds-en asterisk-core-sounds-en-wav",
                  .page = "https://www.asterisk.org",
                  .how = "apt-get install asterisk-core-sounds-en asterisk-core-sounds-en-wav",
                  .places = {"/usr/share/asterisk/sounds/en_US_f_Allison",
                             "/usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz"},
                  .package_only = true,
                  .licence = "CC BY-SA 3.0"});
  sets.push_back({.name = "mnist",
                  .recipes = {"fashion"},
                  .what = "60,000 + 10,000 grey images of digits, 28 x 28, 10 classes",
                  .size = "12 MB",
                  .page = "https://yann.lecun.com/exdb/mnist/",
                  .how = "download the four .gz files of the page, or of its mirror "
                         "https://ossci-datasets.s3.amazonaws.com/mnist/, to $DGC_DATA/mnist",
                  .licence = "CC BY-SA 3.0"});
  sets.push_back({.name = "cifar10",
                  .recipes = {"cifar10"},
                  .what = "50,000 + 10,000 colour images, 32 x 32, 10 classes",
                  .size = "170 MB",
                  .page = "https://www.cs.toronto.edu/~kriz/cifar.html",
                  .how = "unpack cifar-10-binary.tar.gz (the binary version) in $DGC_DATA/cifar10",
                  .archives = {{"cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"}},
                  .licence = "none stated; cite Krizhevsky 2009"});
  sets.push_back({.name = "ptb",
                  .recipes = {"ptb"},
                  .what = "Penn Treebank as prepared by Mikolov, 1.1 million words",
                  .size = "35 MB",
                  .page = "http://www.fit.vutbr.cz/~imikolov/rnnlm/",
                  .how = "unpack simple-examples.tgz of the page in $DGC_DATA/ptb",
                  .licence = "for research only"});
  sets.push_back(
      {.name = "an4",
       .recipes = {"an4"},
       .what = "CMU's census recordings, 948 + 130 utterances, 48 minutes, 16 kHz",
       .size = "64 MB",
       .page = "http://www.speech.cs.cmu.edu/databases/an4/",
       .how = "unpack an4_sphere.tar.gz (or an4_raw.bigendian.tar.gz) of the page in $DGC_DATA",
       .licence = "CMU's, like BSD's"});
  sets.push_back(
      {.name = "librispeech",
       .recipes = {"librispeech"},
       .what = "read English books, 16 kHz; 100, 360 and 500 hours to train, 21 to test",
       .size = "0.3 to 30 GB each",
       .page = "https://www.openslr.org/12/",
       .how = "unpack the archives of the page in $DGC_DATA/librispeech; at least one of train-*, "
              "dev-* and test-* each",
       .archives = {{"dev-clean.tar.gz", "42e2234ba48799c1f50f24a7926300a1"},
                    {"dev-other.tar.gz", "c8d0bcc9cca99d4f8b62fcc847357931"},
                    {"test-clean.tar.gz", "32fa31d27d2e1cad72775fee3f4849a9"},
                    {"test-other.tar.gz", "fb5a50374b501bb3bac4815ee91d3135"},
                    {"train-clean-100.tar.gz", "2a93770f6d5c6c964bc36631d331a522"},
                    {"train-clean-360.tar.gz", "c0e676e450a7ff2f54aeade5171606fa"},
                    {"train-other-500.tar.gz", "d1a0fd59409feb2c614ce4d30c387708"}},
       .licence = "CC BY 4.0"});
  sets.push_back(
      {.name = "imagenet",
       .recipes = {"imagenet"},
       .what = "ILSVRC 2012: 1,281,167 + 50,000 photographs of 1,000 classes",
       .size = "145 GB",
       .page = "https://image-net.org/challenges/LSVRC/2012/",
       .how = "register at image-net.org; unpack the archives so that $DGC_DATA/imagenet/train and "
              "val each have a folder per class",
       .archives = {{"ILSVRC2012_img_train.tar", "1d675b47d978889d74fa0da5fadfb00e"},
                    {"ILSVRC2012_img_val.tar", "29b22e2961454d5413ddabcf34fc5622"}},
       .licence = "for research only, after registration"});
  sets.push_back({.name = "tiny-imagenet",
                  .recipes = {"imagenet"},
                  .what = "100,000 + 10,000 photographs of 200 classes, 64 x 64",
                  .size = "248 MB",
                  .page = "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                  .how = "unpack tiny-imagenet-200.zip; its folder tiny-imagenet-200 is "
                         "$DGC_DATA/tiny-imagenet",
                  .archives = {{"tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"}},
                  .licence = "for research only, as ImageNet"});
  return sets;
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

/// $DGC_DATA/<name>, when that variable is set and the set can be there.
std::optional<fs::path> own_place(const DataSet& set) {
  const char* const root = std::getenv("DGC_DATA");  // NOLINT(concurrency-mt-unsafe)
  if (root == nullptr || *root == '\0' || set.package_only) return std::nullopt;
  return fs::path(root) / set.name;
}

std::optional<fs::path> locate(const DataSet& set) {
  if (set.package_only) {
    if (std::all_of(set.places.begin(), set.places.end(), is_there)) return set.places.front();
    return std::nullopt;
  }
  if (auto own = own_place(set); own && is_there(*own)) return own;
  for (const fs::path& place : set.places) {
    if (is_there(place)) return place;
  }
  return std::nullopt;
}

}  // namespace

const std::vector<DataSet>& catalogue() {
  static const std::vector<DataSet> sets = make_catalogue();
  return sets;
}

const DataSet& data_set(const std::string& name) {
  std::vector<std::string> names;
  for (const DataSet& set : catalogue()) {
    if (set.name == name) return set;
    names.push_back(set.name);
  }
  throw Error(ErrorCode::invalid_argument, "find data", name, "no such data set",
              did_you_mean(name, names) + "`dgc data` lists all");
}

fs::path find_data(const std::string& name, const fs::path& given) {
  const DataSet& set = data_set(name);
  if (!given.empty()) {
    if (is_there(given)) return given;
    throw Error(ErrorCode::io, "find data", given.string(),
                fmt::format("does not exist; {} was to be there", name), "to get it: " + set.how);
  }
  if (const auto found = locate(set)) return *found;
  std::string looked;
  if (const auto own = own_place(set)) looked = own->string();
  for (const fs::path& place : set.places) {
    if (set.package_only && is_there(place)) continue;
    looked += (looked.empty() ? "" : " and ") + place.string();
  }
  const bool unset = !set.package_only && !own_place(set);
  throw Error(
      ErrorCode::io, "find data", name,
      looked.empty()
          ? std::string("not found: DGC_DATA is not set, and no folder was given")
          : fmt::format("not found: looked for {}{}", looked, unset ? "; DGC_DATA is not set" : ""),
      "to get it: " + set.how);
}

std::optional<fs::path> find_data_quietly(const std::string& name) {
  return locate(data_set(name));
}

}  // namespace dgc::data
