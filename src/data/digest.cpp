#include "data/digest.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/evp.h>

#include <array>
#include <memory>
#include <vector>

#include "base/file.h"
#include "data/unpack.h"
#include "dgc/error.h"

namespace dgc::data {
namespace {

class Digest {
 public:
  Digest() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    if (context_ == nullptr || EVP_DigestInit_ex(context_.get(), EVP_md5(), nullptr) != 1) {
      // A system in FIPS mode refuses MD5.
      throw Error(ErrorCode::io, "digest", "OpenSSL", "does not offer MD5");
    }
  }

  void add(const void* data, std::size_t size) { EVP_DigestUpdate(context_.get(), data, size); }

  std::string hex() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> value{};
    unsigned size = 0;
    EVP_DigestFinal_ex(context_.get(), value.data(), &size);
    return fmt::format("{:02x}", fmt::join(value.begin(), value.begin() + size, ""));
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

}  // namespace

std::string md5_of_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  Digest digest;
  digest.add(file.contents().data(), file.contents().size());
  return digest.hex();
}

std::string md5_of_contents(const std::filesystem::path& path) {
  UnpackedFile file(path);
  Digest digest;
  std::vector<std::uint8_t> bytes(std::size_t{1} << 20);
  while (const std::size_t got = file.read(bytes)) digest.add(bytes.data(), got);
  return digest.hex();
}

}  // namespace dgc::data
