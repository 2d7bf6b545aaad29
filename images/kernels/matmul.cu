// c = a * b for row-major n x n matrices; 16 x 16 tiles in shared memory
#define TILE 16
extern "C" __global__ void matmul(const float *a, const float *b, float *c, unsigned n)
{
    __shared__ float ta[TILE][TILE];
    __shared__ float tb[TILE][TILE];
    unsigned row = blockIdx.y * TILE + threadIdx.y;
    unsigned col = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.0f;
    for (unsigned t = 0; t < n; t += TILE) {
        ta[threadIdx.y][threadIdx.x] = (row < n && t + threadIdx.x < n) ? a[row * n + t + threadIdx.x] : 0.0f;
        tb[threadIdx.y][threadIdx.x] = (t + threadIdx.y < n && col < n) ? b[(t + threadIdx.y) * n + col] : 0.0f;
        __syncthreads();
        for (unsigned k = 0; k < TILE; k++)
            sum += ta[threadIdx.y][k] * tb[k][threadIdx.x];
        __syncthreads();
    }
    if (row < n && col < n)
        c[row * n + col] = sum;
}
