#include "data/digest.h"

#include <fmt/format.h>
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
  explicit Digest(const EVP_MD* algorithm) : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    if (context_ == nullptr || EVP_DigestInit_ex(context_.get(), algorithm, nullptr) != 1) {
      // A system in FIPS mode refuses MD5.
      throw Error(ErrorCode::io, "digest", "OpenSSL", "does not offer this digest");
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

std::string digest_of(const std::filesystem::path& path, const EVP_MD* algorithm) {
  const MappedFile file(path);
  Digest digest(algorithm);
  digest.add(file.contents().data(), file.contents().size());
  return digest.hex();
}

}  // namespace

std::string md5_of_file(const std::filesystem::path& file) { return digest_of(file, EVP_md5()); }

std::string sha256_of_file(const std::filesystem::path& file) {
  return digest_of(file, EVP_sha256());
}

std::string md5_of_contents(const std::filesystem::path& path) {
  UnpackedFile file(path);
  Digest digest(EVP_md5());
  std::vector<std::uint8_t> bytes(std::size_t{1} << 20);
  while (const std::size_t got = file.read(bytes)) digest.add(bytes.data(), got);
  return digest.hex();
}

}  // namespace dgc::data
