<?php

namespace App\Providers;

use Illuminate\Cache\RateLimiter;
use Illuminate\Cache\RateLimiting\Limit;
use Illuminate\Support\ServiceProvider;

class AppServiceProvider extends ServiceProvider
{
    public function register()
    {
    }

    public function boot()
    {
        $this->app->make(RateLimiter::class)->for('backups', fn () => Limit::perMinute(5));
        $this->app->make(RateLimiter::class)->for('uploads', fn ($job) => Limit::perHour(100)->by($job->userId));
    }
}
