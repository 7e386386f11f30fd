<?php

namespace App;

use PDO;

/**
 * The SQLite file behind models, failed jobs and batches. It appears when
 * something first connects to it, complete or not at all, so several processes
 * may come at once. Ids and times are fixed.
 */
final class Database
{
    private const SCHEMA = <<<'SQL'
        create table users (id integer primary key, name text, email text, created_at text, updated_at text);
        create table posts (id integer primary key, user_id integer, title text, created_at text, updated_at text);
        create table comments (id integer primary key, post_id integer, body text, created_at text, updated_at text);
        create table documents (id text primary key, title text, created_at text, updated_at text);
        create table failed_jobs (id integer primary key autoincrement, uuid text unique not null,
            connection text not null, queue text not null, payload text not null, exception text not null,
            failed_at text not null default current_timestamp);
        create table job_batches (id text primary key, name text not null, total_jobs integer not null,
            pending_jobs integer not null, failed_jobs integer not null, failed_job_ids text not null,
            options text, cancelled_at integer, created_at integer not null, finished_at integer);
        create table jobs (id integer primary key autoincrement, queue text not null, payload text not null,
            attempts integer not null, reserved_at integer, available_at integer not null, created_at integer not null);
        create index jobs_queue on jobs (queue);
        create table cache (key text primary key, value text not null, expiration integer not null);
        create table cache_locks (key text primary key, owner text not null, expiration integer not null);
        SQL;

    private const ROWS = <<<'SQL'
        insert into users values (1, 'Ada', 'ada@example.com', '2026-01-01 00:00:00', '2026-01-01 00:00:00');
        insert into users values (2, 'Grace', 'grace@example.com', '2026-01-01 00:00:00', '2026-01-01 00:00:00');
        insert into users values (3, 'Żaneta', 'zaneta@example.com', '2026-01-01 00:00:00', '2026-01-01 00:00:00');
        insert into posts values (10, 1, 'First', '2026-01-01 00:00:00', '2026-01-01 00:00:00');
        insert into posts values (11, 1, 'Second', '2026-01-01 00:00:00', '2026-01-01 00:00:00');
        insert into comments values (100, 10, 'Nice', '2026-01-01 00:00:00', '2026-01-01 00:00:00');
        insert into documents values ('9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d', 'Deed', '2026-01-01 00:00:00', '2026-01-01 00:00:00');
        SQL;

    public static function prepare(string $path): void
    {
        if ($path === ':memory:' || is_file($path)) {
            return;
        }

        $partial = $path.'.'.getmypid();
        @unlink($partial);
        $pdo = new PDO('sqlite:'.$partial, options: [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]);
        $pdo->exec(self::SCHEMA);
        $pdo->exec(self::ROWS);
        unset($pdo);

        // link() refuses to replace a file that somebody else has finished.
        @link($partial, $path);
        unlink($partial);
    }
}
