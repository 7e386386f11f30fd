<?php

/**
 * Makes the application object, without Composer and without any file that a
 * Laravel skeleton would have: Debian's packages bring an autoloader for the
 * framework, and everything else is below src/.
 *
 * `artisan` includes this file; another script may include it too and then call
 * `bootstrap()` on the console kernel. `vendor/autoload.php` and
 * `bootstrap/app.php` are where manifest.php looks for them.
 */

require_once __DIR__.'/src/Determinism.php';

require_once __DIR__.'/vendor/autoload.php';
if (! class_exists('Aws\Sqs\SqsClient')) {
    require_once __DIR__.'/src/Aws/SqsClient.php';
}

$app = new Illuminate\Foundation\Application(__DIR__);
$app->useAppPath(__DIR__.'/src');

$storage = getenv('INTEROP_STORAGE')
    ?: sys_get_temp_dir().'/artisand-interop-'.(getenv('INTEROP_KEY') ?: posix_getuid());
foreach (['', '/framework', '/framework/views', '/framework/cache', '/logs'] as $directory) {
    if (! is_dir($storage.$directory)) {
        @mkdir($storage.$directory, 0777, true);
    }
}
$app->useStoragePath($storage);

$app->singleton(Illuminate\Contracts\Console\Kernel::class, App\Kernel::class);
$app->singleton(
    Illuminate\Contracts\Debug\ExceptionHandler::class,
    Illuminate\Foundation\Exceptions\Handler::class
);

return $app;
