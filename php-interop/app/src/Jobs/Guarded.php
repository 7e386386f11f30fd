<?php

namespace App\Jobs;

use Illuminate\Queue\Middleware\RateLimited;
use Illuminate\Queue\Middleware\RateLimitedWithRedis;
use Illuminate\Queue\Middleware\Release;
use Illuminate\Queue\Middleware\Skip;
use Illuminate\Queue\Middleware\ThrottlesExceptions;
use Illuminate\Queue\Middleware\ThrottlesExceptionsWithRedis;
use Illuminate\Queue\Middleware\WithoutOverlapping;

/**
 * A journal job with the middleware that `$guards` describes: a list of
 * `{"without_overlapping": {"release_after": 5, ..}}`, with the names and times
 * (seconds) of `artisand.toml`. A value `{group}` is the job's group.
 */
class Guarded extends Journal
{
    public array $guards = [];

    public string $group = '';

    public $muted = false;

    public function middleware(): array
    {
        return self::build($this->guards, $this->group);
    }

    /** The same as objects, for `through()`. */
    public static function build(array $guards, string $group): array
    {
        $built = [];
        foreach ($guards as $guard) {
            foreach ($guard as $name => $options) {
                $options = array_map(fn ($value) => $value === '{group}' ? $group : $value, (array) $options);
                $built[] = self::one($name, $options, (int) app()->version());
            }
        }

        return $built;
    }

    private static function one(string $name, array $options, int $version): object
    {
        $minutes = $version < 11 ? 60 : 1;
        $made = match ($name) {
            'without_overlapping' => new WithoutOverlapping(
                $options['key'] ?? '',
                ($options['dont_release'] ?? false) ? null : $options['release_after'] ?? 0,
                $options['expires_after'] ?? 0
            ),
            'rate_limited' => new RateLimited($options['limiter']),
            'rate_limited_with_redis' => new RateLimitedWithRedis($options['limiter']),
            'throttles_exceptions' => new ThrottlesExceptions(
                $options['max'] ?? 10,
                intdiv($options['decay'] ?? 600, $minutes)
            ),
            'throttles_exceptions_with_redis' => new ThrottlesExceptionsWithRedis(
                $options['max'] ?? 10,
                intdiv($options['decay'] ?? 600, $minutes)
            ),
            'skip' => Skip::when((bool) $options['when']),
            'release' => Release::when((bool) $options['when'], $options['after']),
            'php_only' => new PhpOnly,
        };
        if (isset($options['prefix'])) {
            $made->withPrefix($options['prefix']);
        }
        if ($options['shared'] ?? false) {
            $made->shared();
        }
        if (isset($options['by'])) {
            $made->by($options['by']);
        }
        if ($options['by_job'] ?? false) {
            $made->byJob();
        }
        if (isset($options['backoff'])) {
            $made->backoff(intdiv($options['backoff'], 60));
        }
        if (str_starts_with($name, 'rate_limited') && ($options['dont_release'] ?? false)) {
            $made->dontRelease();
        }

        return $made;
    }
}
