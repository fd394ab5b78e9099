// NVIDIA's host conversions behind a file interface: oracle MODE IN OUT.
//
//   e2m1   FP32 values -> one E2M1 code a byte
//   e4m3   FP32 values -> E4M3 bytes
//   group  FP32 groups of 16 -> 8 packed bytes and the scale byte, as the
//          format's rule has it

#include <cuda_fp4.h>
#include <cuda_fp8.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

namespace {

constexpr int kGroup = 16;

std::uint8_t to_e2m1(float value) {
  return __nv_cvt_float_to_fp4(value, __NV_E2M1, cudaRoundNearest);
}

std::uint8_t to_e4m3(float value) {
  return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
}

float from_e4m3(std::uint8_t byte) {
  __nv_fp8_e4m3 value;
  value.__x = byte;
  return static_cast<float>(value);
}

void quantize_group(const float* values, std::vector<std::uint8_t>& out) {
  float amax = 0.0f;
  // CUDA's fmaxf drops every NaN; glibc's keeps signaling ones. This drops them.
  for (int i = 0; i < kGroup; ++i)
    if (std::fabs(values[i]) > amax) amax = std::fabs(values[i]);
  const std::uint8_t scale_byte = to_e4m3(amax / 6.0f);
  const float scale = from_e4m3(scale_byte);
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  for (int i = 0; i < kGroup; i += 2) {
    const std::uint8_t low = to_e2m1(values[i] * inverse);
    const std::uint8_t high = to_e2m1(values[i + 1] * inverse);
    out.push_back(static_cast<std::uint8_t>(low | high << 4));
  }
  out.push_back(scale_byte);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const std::string mode = argv[1];
  std::ifstream in(argv[2], std::ios::binary | std::ios::ate);
  std::vector<float> values(static_cast<std::size_t>(in.tellg()) / sizeof(float));
  in.seekg(0);
  in.read(reinterpret_cast<char*>(values.data()), values.size() * sizeof(float));

  std::vector<std::uint8_t> out;
  if (mode == "group") {
    for (std::size_t i = 0; i + kGroup <= values.size(); i += kGroup)
      quantize_group(&values[i], out);
  } else {
    for (float value : values)
      out.push_back(mode == "e2m1" ? to_e2m1(value) : to_e4m3(value));
  }
  std::ofstream file(argv[3], std::ios::binary);
  file.write(reinterpret_cast<const char*>(out.data()), out.size());
  return file.good() ? 0 : 1;
}
