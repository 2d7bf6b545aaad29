// One leapfrog step of n bodies: pos = (x, y, z, mass), vel = (vx, vy, vz, 0); reads pos, writes next
#define BLOCK 64
extern "C" __global__ void nbody_step(const float4 *pos, float4 *next, float4 *vel, unsigned n, float dt, float eps2)
{
    __shared__ float4 tile[BLOCK];
    unsigned i = blockIdx.x * BLOCK + threadIdx.x;
    float4 p = i < n ? pos[i] : make_float4(0, 0, 0, 0);
    float ax = 0, ay = 0, az = 0;
    for (unsigned t = 0; t < n; t += BLOCK) {
        tile[threadIdx.x] = t + threadIdx.x < n ? pos[t + threadIdx.x] : make_float4(0, 0, 0, 0);
        __syncthreads();
        for (unsigned k = 0; k < BLOCK; k++) {
            float dx = tile[k].x - p.x, dy = tile[k].y - p.y, dz = tile[k].z - p.z;
            float r = rsqrtf(dx * dx + dy * dy + dz * dz + eps2);
            float s = tile[k].w * r * r * r;
            ax += dx * s;
            ay += dy * s;
            az += dz * s;
        }
        __syncthreads();
    }
    if (i < n) {
        float4 v = vel[i];
        v.x += ax * dt;
        v.y += ay * dt;
        v.z += az * dt;
        vel[i] = v;
        next[i] = make_float4(p.x + v.x * dt, p.y + v.y * dt, p.z + v.z * dt, p.w);
    }
}
