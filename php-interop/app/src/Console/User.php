<?php

namespace App\Console;

use App\Models\User as Model;
use Illuminate\Console\Command;

class User extends Command
{
    protected $signature = 'interop:user {id} {--gone}';

    protected $description = 'Delete a user, or make it anew';

    public function handle(): int
    {
        $id = (int) $this->argument('id');
        if ($this->option('gone')) {
            Model::query()->whereKey($id)->delete();
        } else {
            (new Model(['name' => "User $id"]))->forceFill(['id' => $id])->save();
        }

        return 0;
    }
}
